"""The Dockerfile carried out, and its container, without an engine: `containerfile` says what stands in for what."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import TestHost

from daemon.store.migrations import revision_of
from daemon.store.schema import SCHEMA_VERSION
from tests.hosts.container import Container, Options, options_of, readme_line
from tests.hosts.containerfile import Build, Image, NotKnown, Space, instructions, space
from tests.hosts.test_bare_root import PIP_ENVIRON, _pip_needs, base
from tests.store.upgrading import first_store

__all__ = ["base"]
pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
UID = 10001
STORE, SSH = "/var/lib/stoker-server", "/etc/stoker-ssh"
Run = Callable[..., Container]
HOST = """\
apiVersion: stoker/v1
kind: Host
metadata: {{name: alpha}}
spec: {{ssh: {{address: {address}, user: root}}, gpus: {{count: 2}}, period: 2s}}
"""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    with space(tmp_path_factory.mktemp("docker") / "space") as made:
        yield made


@pytest.fixture(scope="module")
def image(where: Space, base: Path) -> Image:
    environ = {name: value for name, value in os.environ.items() if PIP_ENVIRON.fullmatch(name)}
    began = time.monotonic()
    made = Build(where, base, ROOT, environ, list(_pip_needs(environ))).build(TEXT)
    print(f"\nthe image was built in {time.monotonic() - began:.1f} s")
    return made


@pytest.fixture
def options() -> Options:
    return options_of(readme_line((ROOT / "README.md").read_text()))


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """The folders behind the README's mounts: a new volume, and keys that uid 10001 may read."""
    found = {"stoker": tmp_path / "volume", SSH: tmp_path / "ssh", "log": tmp_path}
    for folder in (found["stoker"], found[SSH]):
        folder.mkdir()
    return found


@pytest.fixture
def run(where: Space, image: Image, options: Options, sources: dict[str, Path]) -> Iterator[Run]:
    """run(name, net=…, command=…): a container by the README's line; killed after the test."""
    made: list[Container] = []

    def start(name: str, **more: object) -> Container:
        made.append(Container(where, image, options, sources, name=name, **more))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for container in made:
        container.kill()


def test_every_instruction_is_carried_out_and_an_unknown_one_refused(where: Space, base: Path, image: Image) -> None:
    names = [instruction.name for instruction in instructions(TEXT)]
    assert names.count("FROM") == 2
    assert {"COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"} <= set(names)
    assert (image.user, image.volumes, image.ports) == (str(UID), (STORE,), (8460,))
    for line in ("ADD . /", 'SHELL ["bash"]', "FROM alpine", "COPY --chown=1 a b", "RUN --mount=type=cache x", "run x"):
        with pytest.raises(NotKnown):
            Build(where, base, ROOT, {}, []).build(line)


def test_image_holds_what_stoker_needs_and_neither_its_sources_nor_its_tests(where: Space, image: Image) -> None:
    packages = where.run("sh", "-c", f"ls {image.layers[0]}/opt/stoker/lib/python3*/site-packages").split()
    assert {"daemon", "api", "asyncssh", "sqlalchemy", "alembic"} <= set(packages)
    assert not {"pytest", "mypy", "hypothesis", "tests"} & set(packages)
    written = where.run("find", str(image.layers[0]), "-maxdepth", "1", "-printf", "%f\n").split()
    assert "src" not in written
    assert where.run("find", f"{image.layers[0]}/opt", "-perm", "/022", "!", "-type", "l") == ""


def test_container_sees_a_host_with_the_readmes_mounts_alone(
    run: Run, host: TestHost, sources: dict[str, Path], options: Options
) -> None:
    for file in (host.ssh_key, host.known_hosts):
        copy = sources[SSH] / {host.ssh_key: "id_ed25519"}.get(file, "known_hosts")
        shutil.copyfile(file, copy)
        copy.chmod(0o400)
        os.chown(copy, UID, UID)
    container = run("first", net=host.slot.link)
    container.wait(container.healthy, "health")
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\nGid:\t{UID}\t" in status
    assert status.split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
    if options.no_capabilities:
        assert "CapBnd:\t0000000000000000" in status
    if options.read_only:
        assert "Read-only" in container.execute("touch", "/opt/stoker/x").stderr
    said = container.execute("sh", "-c", f"printf '{HOST.format(address=host.address)}' | stoker apply -f -")
    assert said.returncode == 0, said.stderr
    container.wait(lambda: _observed(container), "the host is observed")
    assert "alpha" in container.execute("stoker", "get", "hosts").stdout
    began = time.monotonic()
    assert container.stop() == 0
    print(f"\nSIGTERM to the end: {time.monotonic() - began:.2f} s")

    again = run("second", net=host.slot.link)  # a fresh root: only the volume is the same
    again.wait(again.healthy, "health")
    again.wait(lambda: _observed(again), "the host is observed")
    third = run("third", net=host.slot.link)
    assert third.ended(30) == 1
    (line,) = third.log.splitlines()
    assert "another daemon" in line
    assert again.stop() == 0


def _observed(container: Container) -> bool:
    said = container.execute("stoker", "get", "host", "alpha", "-o", "json")
    if said.returncode != 0:
        return False
    conditions = (json.loads(said.stdout).get("status") or {}).get("conditions", [])
    return any(one["type"] == "Observed" and one["status"] == "True" for one in conditions)


def test_health_check_fails_where_nothing_answers(run: Run) -> None:
    container = run("sleeper", command=("sleep", "infinity"))
    assert not container.healthy()


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_data_folder_that_is_not_ours_ends_in_one_line_that_says_what_to_do(
    run: Run, sources: dict[str, Path], mode: int
) -> None:
    (sources["stoker"] / "lost+found").mkdir()  # a folder that was there, of root: not filled from the image
    sources["stoker"].chmod(mode)
    container = run(f"wrong-{mode:o}")
    assert container.ended(30) == 1
    (line,) = container.log.splitlines()
    assert line.startswith(f"stoker: {STORE}")
    assert "uid 10001" in line


def test_volume_of_the_first_version_is_upgraded_in_the_container(run: Run, sources: dict[str, Path]) -> None:
    volume = sources["stoker"]
    first_store(volume / "stoker.db")
    for file in (volume, *volume.iterdir()):
        os.chown(file, UID, UID)
    container = run("upgraded")
    container.wait(container.healthy, "health")
    said = container.execute("stoker", "get", "specs").stdout
    assert {"k26", "old"} <= set(said.split())  # the third was being deleted, and now is
    assert (volume / f"stoker.db.before-{revision_of(SCHEMA_VERSION)}").stat().st_uid == UID
    assert container.stop() == 0


def test_nothing_of_the_build_stays_mounted_here(where: Space) -> None:
    assert not any(str(where.folder) in line for line in Path("/proc/self/mounts").read_text().splitlines())
