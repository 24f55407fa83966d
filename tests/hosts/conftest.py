"""Fixtures for tests on real hosts. Importing needs nothing; the first host made needs root, nspawn and debootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Pool, TestHost
from harness.build import ssh_key
from harness.nested import Nested

from tests.hosts.running import Daemon
from tests.hosts.strays import CARDS, Ground, Lane

MakeHost = Callable[..., TestHost]


@pytest.fixture(scope="session")
def host_pool() -> Iterator[Pool]:
    """The session's hosts; all are taken down at its end."""
    with Pool() as pool:
        yield pool


@pytest.fixture
def make_host(host_pool: Pool) -> Iterator[MakeHost]:
    """make_host(name, gpus=2, idle=0, hybrid=False, containers=()): a clean booted host; cleaned after the test."""
    made: list[TestHost] = []

    def make(
        name: str, gpus: int = 2, idle: int = 0, hybrid: bool = False, containers: tuple[int, ...] = ()
    ) -> TestHost:
        made.append(host_pool.make_host(name, gpus=gpus, idle=idle, hybrid=hybrid, containers=containers))
        return made[-1]

    yield make
    for host in made:
        host_pool.release(host)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """tell(line, …): figures that are to be seen though the test passes."""

    def told(*lines: str) -> None:
        with capsys.disabled():
            print("", *lines, sep="\n")

    return told


@pytest.fixture
def host(make_host: MakeHost) -> TestHost:
    """One clean host with two GPUs."""
    return make_host("alpha")


@pytest.fixture
def pve(make_host: MakeHost) -> TestHost:
    """A machine with system container 129, which `pct` there enters."""
    return make_host("pve", containers=(129,))


@pytest.fixture
def inside(pve: TestHost) -> Nested:
    """That container, up."""
    inside = Nested(pve, 129)
    inside.wait_ready()
    return inside


@pytest.fixture
def crowded(make_host: MakeHost) -> TestHost:
    """One clean host with two GPUs and 1,500 idle processes."""
    return make_host("crowd", idle=1500)


@pytest.fixture
def daemon(tmp_path: Path, host_pool: Pool) -> Iterator[Daemon]:
    """A daemon process on an empty store, not told of any host yet; ended after the test."""
    del host_pool
    running = Daemon(tmp_path / "data", ssh_key())
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def ground(
    host_pool: Pool, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Ground]:
    """A host of many cards with a daemon, kept for the module's tests; each takes lanes of its own.

    HELD_LANES of the module is how many of them have held their card and port before.
    """
    host = host_pool.make_host("many", gpus=CARDS)
    running = Daemon(tmp_path_factory.mktemp("ground") / "data", ssh_key())
    try:
        running.start()
        made = Ground(running, host)
        made.hold_cards(request.module.HELD_LANES)
        yield made
    finally:
        running.kill()
        host_pool.release(host)


@pytest.fixture
def make_lane(ground: Ground) -> Iterator[Callable[..., Lane]]:
    """make_lane(…): a spec on a card of its own, not declared yet; make_lane(held=True): one of HELD_LANES.

    It is deleted after the test.
    """
    made: list[Lane] = []

    def make(*, held: bool = False, **more: object) -> Lane:
        made.append(ground.held_lane() if held else ground.lane(**more))
        return made[-1]

    yield make
    for lane in made:
        lane.remove()
