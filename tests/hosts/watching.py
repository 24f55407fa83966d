"""A watch in this process, on a test host: what was heard when, and a service whose main process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness import TestHost

from daemon.bus import Manners, Seams, Watches, WatchLimits
from daemon.domain.host import HostSpec, Ssh
from daemon.domain.status import Event
from daemon.settings import Settings
from daemon.ssh import Roads, SshRoad, SshSettings

UNIT = "stoker-m.server.service"
_PID = "var/tmp/main.pid"
_TEXT = f"""[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh -c 'echo $$$$ >/{_PID}.new && mv /{_PID}.new /{_PID} && exec sleep infinity'
Restart=always
RestartSec=50ms
"""


def host_spec(host: TestHost, user: str = "root", **more: object) -> HostSpec:
    return HostSpec(ssh=Ssh(address=host.address, user=user, host_key=host.host_key_line), sudo=False, **more)  # type: ignore[arg-type]


def defaults() -> Manners:
    """As a daemon has them whose operator chose nothing."""
    found = Settings(data=Path("/nonexistent"))
    return Manners(found.watch_answer_s, found.watch_ping_s, found.watch_spacing_s)


class Victim:
    """The service. Its main process writes its pid where it can be read from outside at no cost."""

    def __init__(self, host: TestHost) -> None:
        self.host = host
        self._file = host.slot.root / _PID
        host.write(f"/etc/systemd/system/{UNIT}", _TEXT.encode())
        host.sh(f"systemctl daemon-reload; systemctl start {UNIT}")

    def pid(self) -> int:
        """The pid inside; 0: none yet."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._file.read_text())
        return 0

    async def kill(self) -> float:
        """SIGKILL to the main process, from outside; when that was. Returns once another main process runs."""
        inside = self.pid()
        outside = self.host.host_pid(inside)
        at = time.monotonic()
        os.kill(outside, signal.SIGKILL)
        await until(lambda: self.pid() not in (0, inside))
        return at


@dataclass
class Ear:
    """`pokes` are the times at which the host was woken."""

    watches: Watches
    road: SshRoad
    pokes: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    async def look(self, units: tuple[str, ...] = (UNIT,)) -> None:
        """As after a fine look of the controller."""
        await self.road.run(("true",), b"", 20)
        self.watches.seen("a", "", self.road, units)

    async def up(self, timeout_s: float = 30) -> None:
        """Looks now and then, as a controller that is woken does, until the host is watched."""
        deadline = time.monotonic() + timeout_s
        while not self.watches.is_up("a"):
            assert time.monotonic() < deadline, [event.message for event in self.events]
            with contextlib.suppress(Exception):
                await self.look()
            await asyncio.sleep(0.05)

    async def quiet(self) -> None:
        """Until nothing was heard for longer than a hint is held back."""
        spacing_s = self.watches.limits.manners.spacing_s
        await until(lambda: not self.pokes or time.monotonic() - self.pokes[-1] > 1.5 * spacing_s)


@contextlib.asynccontextmanager
async def ear(host: TestHost, *, user: str = "root", manners: Manners | None = None) -> AsyncIterator[Ear]:
    """A pool with its watches, not looked through yet. Everything must be over within seconds of its end."""
    roads = Roads(SshSettings(identity=host.ssh_key, connect_timeout_s=3, login_timeout_s=5), lambda _: None)
    pokes, events, tasks = list[float](), list[Event](), set[asyncio.Task[None]]()

    async def say(event: Event) -> None:
        events.append(event)

    try:
        async with asyncio.TaskGroup() as group:

            def spawn(name: str, work: Awaitable[None]) -> asyncio.Task[None]:
                tasks.add(task := group.create_task(work))  # type: ignore[arg-type]
                return task

            seams = Seams(lambda _: pokes.append(time.monotonic()), spawn, say, random.random, time.monotonic)  # type: ignore[arg-type]
            limits = WatchLimits(manners or defaults(), retry_s=1.0, unwatched_period_s=5.0)
            road = roads.road("a", host_spec(host, user))
            assert isinstance(road, SshRoad)
            yield Ear(Watches(limits, seams), road, pokes, events)
            for task in tasks:
                task.cancel()
            async with asyncio.timeout(2):
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        async with asyncio.timeout(5):
            await roads.close()


async def until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.005)
