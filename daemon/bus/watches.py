"""Which hosts are watched: one task for each, started by a fine look, ended with its host.

Owned by `controller`. A watch that ends says so by waking its host: the look that follows is also what finds a
connection again and starts the next try, which waits out its back-off first. So nothing is dialled from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import structlog

from daemon.bus.conversation import Conversation, Manners, Stream
from daemon.domain.errors import TransportError
from daemon.domain.status import Event, Reason

log = structlog.get_logger("stoker")

SOCKET = "/run/dbus/system_bus_socket"
_FIRST_RETRY_S = 0.5


@runtime_checkable
class Opens(Protocol):
    """A road on which sockets of the host can be opened; a road that is none is not watched."""

    async def open_socket(self, path: str, timeout_s: float) -> Stream:
        """Raises TransportError: TransportLost when the connection is gone, else why the host gives none."""


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """`retry_s`: the longest back-off. `unwatched_period_s`: how seldom a host is looked at while not watched."""

    manners: Manners
    retry_s: float
    unwatched_period_s: float


@dataclass(slots=True)
class _Watch:
    way: object
    road: Opens
    units: frozenset[str] = frozenset()
    task: asyncio.Task[None] | None = None
    talk: Conversation | None = None
    up: bool = False
    failures: int = 0  # since a watch last held
    signals: int = 0  # of ended conversations
    told: str = ""  # why it is not watched, as an event last said


@dataclass(frozen=True, slots=True)
class Seams:
    """What the owner gives: how to wake a host, to run a task, to say an event; dice in [0, 1) and a clock."""

    poke: Callable[[str], None]
    spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None] | None]
    say: Callable[[Event], Awaitable[None]]
    dice: Callable[[], float]
    clock: Callable[[], float]


@dataclass(slots=True)
class Watches:
    """See the module. All of it is called on one event loop."""

    limits: WatchLimits
    seams: Seams
    _hosts: dict[str, _Watch] = field(default_factory=dict)

    def seen(self, name: str, way: object, road: object, units: Iterable[str]) -> None:
        """The host was looked at fine over that road: watch these units there, and begin when nobody does.

        `way` is how the host is reached: a watch over another one is given up.
        """
        watch = self._hosts.get(name)
        if watch is not None and watch.way != way:
            self.forget(name)
            watch = None
        if not isinstance(road, Opens):
            return
        if watch is None:
            watch = self._hosts[name] = _Watch(way, road)
        watch.road, watch.units = road, frozenset(units)
        if watch.talk is not None and watch.up:
            with contextlib.suppress(TransportError):  # the task finds that out by itself
                watch.talk.match(watch.units)
        if watch.task is None or watch.task.done():
            watch.task = self.seams.spawn(name, self._run(name, watch))

    def forget(self, name: str) -> None:
        """The host is gone, or is reached in another way."""
        watch = self._hosts.pop(name, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    def is_up(self, name: str) -> bool:
        """Whether a change on the host would be heard now."""
        watch = self._hosts.get(name)
        return watch is not None and watch.up

    def signals(self, name: str) -> int:
        """Signals of matched units so far."""
        watch = self._hosts.get(name)
        return 0 if watch is None else watch.signals + (watch.talk.signals if watch.talk is not None else 0)

    def period_s(self, name: str, period_s: float) -> float:
        """How long the host may go without a look: its period, less when it is not watched."""
        return period_s if self.is_up(name) else min(period_s, self.limits.unwatched_period_s)

    async def _run(self, name: str, watch: _Watch) -> None:
        """One try: wait out the back-off, open, hear until it ends."""
        await asyncio.sleep(self._backoff_s(watch.failures))
        watch.failures += 1
        try:
            await self._hear(name, watch)
        except TransportError as error:
            log.info("watch ended", host=name, error=str(error))
            await self._tell(name, watch, error)

    async def _hear(self, name: str, watch: _Watch) -> None:
        """Raises TransportError, always. The host is woken after each gap: once it is heard, and once it is not."""
        stream = await watch.road.open_socket(SOCKET, self.limits.manners.answer_s)
        since: float | None = None
        try:
            talk = watch.talk = Conversation(stream, self.limits.manners, lambda: self.seams.poke(name))
            asked = watch.units
            await talk.open(asked)
            watch.up, since = True, self.seams.clock()
            if watch.units != asked:
                talk.match(watch.units)
            self.seams.poke(name)
            await self._tell(name, watch, None)
            await talk.listen()
        finally:
            stream.close()
            self._end(name, watch, since)

    def _end(self, name: str, watch: _Watch, since: float | None) -> None:
        """Nothing is heard any more; a watch that had held for a while begins anew without a back-off."""
        if watch.talk is not None:
            watch.signals += watch.talk.signals
        watch.talk, watch.up = None, False
        if since is not None:
            if self.seams.clock() - since >= self.limits.manners.ping_s:
                watch.failures = 0
            if self._hosts.get(name) is watch:
                self.seams.poke(name)

    def _backoff_s(self, failures: int) -> float:
        """None before the first try; then twice as long each time, of which at least half."""
        full_s = min(self.limits.retry_s, _FIRST_RETRY_S * 2.0 ** min(failures, 30))
        return full_s * (0.5 + 0.5 * self.seams.dice()) if failures else 0.0

    async def _tell(self, name: str, watch: _Watch, error: TransportError | None) -> None:
        """An event when a host turns out to give no watch, one for each reason, and one when it does after all.

        A connection that went is no such reason: the look that follows says what there is to say.
        """
        if error is not None and error.reason == Reason.TRANSPORT_LOST:
            return
        why = "" if error is None else error.message
        if why == watch.told:
            return
        watch.told = why
        seldom = f"{self.limits.unwatched_period_s:g} s"
        said = f"not watched, so looked at every {seldom} or sooner: {why}" if why else "watched from now on"
        await self.seams.say(
            Event(
                Reason.WATCH_UNAVAILABLE if why else Reason.WATCHED, said, "Host", name,
                severity="Warning" if why else "Normal",
            )
        )  # fmt: skip
