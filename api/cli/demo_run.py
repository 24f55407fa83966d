"""The demo itself: a simulated fleet, a real daemon over it, faults on a schedule, and what comes of each, live.

Called by `demo` alone, which imports it only then: no other command needs an SSH server. The hosts are simulated in
this process behind real SSH servers on loopback; the daemon is a process of its own that knows no better, and
everything shown is read from its API. When it ends, nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from api.cli.connect import actor
from api.cli.demo_daemon import Running, last_lines, running_daemon
from api.cli.demo_director import Director
from api.cli.demo_fleet import Fleet
from api.cli.demo_manifests import documents, write
from api.cli.demo_screen import Scene
from api.cli.demo_view import View, view
from api.client import Client, Unreachable
from api.token import read_token
from daemon.domain.errors import StokerError
from daemon.settings import monotonic, wall_clock
from daemon.sim.faults import schedule
from daemon.sim.fleet import SimFleet

READ_S = 0.2


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked. `for_s` None: until a person ends it."""

    faults: tuple[str, ...]  # by name, in order
    hosts: int
    port: int
    for_s: float | None
    manifests: Path


async def run(options: Options) -> int:
    """From nothing to nothing; the exit status. Raises: StokerError when the daemon does not start, or dies."""
    stop = _stop_on_signals()
    began = monotonic()
    with view() as shown:
        shown.say(f"starting {options.hosts} simulated hosts and a daemon")
        async with _stage(options) as stage:
            ask = _ask(stage.daemon)
            shown.open(stage.daemon.url, ask, stage.files)
            end_at = None if options.for_s is None else began + options.for_s
            while not stop.is_set() and (end_at is None or monotonic() < end_at):
                await _turn(stage, shown, monotonic() - began, ask)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), READ_S)
            shown.say("ending: the daemon is stopped, the simulated hosts are closed")
        shown.close(stage.director)
    return 1 if stage.director.unhealed else 0


def _stop_on_signals() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop


@dataclass(slots=True)
class _Stage:
    """What runs, and how to ask it."""

    title: str
    daemon: Running
    client: Client
    director: Director
    files: str


@contextlib.asynccontextmanager
async def _stage(options: Options) -> AsyncIterator[_Stage]:
    """Hosts, daemon and manifests, in a folder of their own that is removed at the end."""
    names = [f"gpu-{number}" for number in range(1, options.hosts + 1)]
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="stoker-demo-"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            sim = await stack.enter_async_context(SimFleet.opened(names, folder, wall_clock().timestamp()))
            daemon = await stack.enter_async_context(
                running_daemon(folder, options.port, sim.identity, sim.known_hosts)
            )
            client = stack.enter_context(Client(daemon.url, read_token(daemon.token_file), actor=actor()))
            made = list(documents(options.manifests, sim.doors()))
            files = await asyncio.to_thread(write, folder, made)
            for kind, name, document in made:
                await asyncio.to_thread(client.put, kind, name, document)
            director = Director(schedule(options.faults, sim.hosts), wall_clock)
            title = f"{len(names)} simulated hosts, {8 * len(names)} cards  {daemon.url}"
            yield _Stage(title, daemon, client, director, f"manifests as they were applied: {files}")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _turn(stage: _Stage, shown: View, elapsed_s: float, ask: tuple[str, ...]) -> None:
    """One reading of the fleet, what it means for the faults, and one picture."""
    stage.daemon.refuse_if_dead()
    try:
        fleet = await asyncio.to_thread(Fleet.read, stage.client)
    except Unreachable as error:
        raise StokerError(f"the demo's daemon does not answer: {last_lines(stage.daemon.log)}") from error
    served_before = stage.director.served_at
    steps = stage.director.tick(fleet)
    if served_before is None and stage.director.served_at is not None:
        shown.say(f"all {len(fleet.specs)} specs generate, {elapsed_s:.1f} s after the start")
    scene = Scene(stage.title, elapsed_s, fleet, stage.director.chapters, stage.director.note(fleet), ask, stage.files)
    shown.show(scene, steps)


def _me() -> str:
    """This command, as short as it can be typed here."""
    given = Path(sys.argv[0]).absolute()
    found = shutil.which(given.name)
    if found is not None and Path(found).absolute() == given:
        return given.name
    return str(given.relative_to(Path.cwd())) if given.is_relative_to(Path.cwd()) else str(given)


def _ask(daemon: Running) -> tuple[str, ...]:
    """How a person asks this daemon from another terminal: lines to be pasted, each within 80 columns."""
    return (
        f"export STOKER_URL={daemon.url}",
        f"export STOKER_TOKEN_FILE={daemon.token_file}",
        f"{_me()} get   (describe host gpu-1, events -e)   Ctrl-C here ends it",
    )
