"""A controller that is told to end ends, whatever its tasks make of their cancellation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.ssh.socket import HostSocket
from tests.planner.box import Box
from tests.test_watched import OneRoad, Watched, running, until

pytestmark = pytest.mark.main_job


@dataclass
class Deaf(Watched):
    """A road on which a cancelled call or socket goes on all the same, as one in a library that drops cancellations.

    A call then answers; a socket is waited for until the road is closed.
    """

    deaf_to: str = "observe"
    waiting: bool = False
    dropped: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if verb == self.deaf_to:
            await self._wait(asyncio.Event())
        return await super().call(verb, stdin, timeout_s)

    async def open_socket(self, path: str, timeout_s: float) -> HostSocket:
        if self.deaf_to == "socket":
            await self._wait(self.closed)
            await self.closed.wait()
            raise TransportError(Reason.TRANSPORT_LOST, "closed")
        return await super().open_socket(path, timeout_s)

    async def _wait(self, end: asyncio.Event) -> None:
        self.waiting = True
        try:
            await end.wait()
        except asyncio.CancelledError:
            self.dropped = True

    async def close(self) -> None:
        self.closed.set()


@dataclass
class Closing(OneRoad):
    """A pool that closes its road."""

    async def close(self) -> None:
        await self.only.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("deaf_to", ["observe", "take-fence", "socket"])
async def test_a_task_that_missed_its_cancellation_does_not_keep_the_controller(tmp_path: Path, deaf_to: str) -> None:
    road = Deaf(Box(), deaf_to=deaf_to)
    async with running(tmp_path, road, Closing(road), mode="enforce"):
        await until(lambda: road.waiting)
    assert road.dropped
