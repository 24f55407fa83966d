"""One talk with one host's message bus, from the greeting to the end of its stream.

Called by `watches`, one at a time for each host. It makes no connection, repeats nothing, and calls nothing of systemd
but Subscribe and Ping. It raises TransportError when it is over: TransportLost when the stream just went,
BusUnavailable when the bus refused, said nonsense or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from daemon.bus.wire import ERROR, RETURN, SIGNAL, Heard, Malformed, Reader, call, object_path
from daemon.domain.errors import TransportError
from daemon.domain.status import Reason

_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus")
_SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
_PROPERTIES = "org.freedesktop.DBus.Properties"
_SYSTEMD_GOES = "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.freedesktop.systemd1'"
_LINE_LIMIT_BYTES = 1024  # of the greeting
_CHUNK_BYTES = 64 * 1024


class Stream(Protocol):
    """An open socket of the host."""

    async def read(self, most: int) -> bytes:
        """What came, b"" at the end. Raises TransportError."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Lets go of it at once; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Manners:
    """How long an answer may take, after how much silence the bus is asked whether it lives, and how long what comes
    is left to pile up before it is read, which makes one burst one hint and bounds what a host can cost."""

    answer_s: float
    ping_s: float
    spacing_s: float


class Conversation:
    """`changed` is called when a matched unit may have changed: at most once in `spacing_s` while it listens."""

    def __init__(self, stream: Stream, manners: Manners, changed: Callable[[], None]) -> None:
        self._stream = stream
        self._manners = manners
        self._changed = changed
        self._reader = Reader()
        self._clock = asyncio.get_running_loop().time
        self._serial = 0
        self._asked: dict[int, float] = {}  # serial → until when its answer may take
        self._paths: dict[str, int] = {}  # object path → serial of the AddMatch that named it
        self._systemd: str | None = None  # its unique name on this bus
        self.signals = 0

    async def open(self, units: Iterable[str]) -> None:
        """From the greeting until all matches stand: what happens to those units from now on is heard."""
        await self._greet()
        await self._ask(*_BUS, "org.freedesktop.DBus", "Hello")
        await self._ask(*_BUS, "org.freedesktop.DBus", "AddMatch", _SYSTEMD_GOES)
        self._systemd = (await self._ask(*_SYSTEMD, "org.freedesktop.systemd1.Manager", "Subscribe")).sender
        self.match(units)
        while self._asked:
            await self._hear_some()

    def match(self, units: Iterable[str]) -> None:
        """Hear of exactly these units from soon on; each that is new counts as changed once its match stands."""
        wanted = {object_path(unit) for unit in units}
        for path in sorted(set(self._paths) - wanted):
            del self._paths[path]
            self._send(*_BUS, "org.freedesktop.DBus", "RemoveMatch", _rule(path))
        for path in sorted(wanted - set(self._paths)):
            self._paths[path] = self._send(*_BUS, "org.freedesktop.DBus", "AddMatch", _rule(path))

    async def listen(self) -> None:
        """Until the end, which is always raised."""
        while True:
            if await self._hear_some():
                self._changed()
            await asyncio.sleep(self._manners.spacing_s)

    async def _greet(self) -> None:
        """EXTERNAL without a uid: the bus takes the one of the process that opened its socket, sshd's for the user."""
        self._stream.write(b"\0AUTH EXTERNAL\r\n")
        if await self._line() != b"DATA":
            raise _over("the bus does not take EXTERNAL authentication")
        self._stream.write(b"DATA\r\n")
        line = await self._line()
        if not line.startswith(b"OK"):
            raise _over(f"the bus refused this user: {line[:80]!r}")
        self._stream.write(b"BEGIN\r\n")

    async def _line(self) -> bytes:
        line = b""
        until = self._clock() + self._manners.answer_s
        while not line.endswith(b"\r\n"):
            if len(line) > _LINE_LIMIT_BYTES:
                raise _over("no bus: a greeting without an end")
            line += await self._read(until - self._clock())
        return line[:-2]

    async def _ask(self, destination: str, path: str, interface: str, member: str, *strings: str) -> Heard:
        """One call and its answer; only before `listen`."""
        serial = self._send(destination, path, interface, member, *strings)
        answer: Heard | None = None
        while answer is None:
            for heard in await self._messages():
                self._take(heard)
                if heard.kind == RETURN and heard.answers == serial:
                    answer = heard
        return answer

    async def _hear_some(self) -> bool:
        """What is there or comes next; whether a matched unit may have changed by it."""
        return any([self._take(heard) for heard in await self._messages()])

    async def _messages(self) -> list[Heard]:
        """The next chunk's. A silent bus is pinged; one that owes an answer for too long has ended."""
        try:
            data = await self._read(self._patience_s())
            return list(self._reader.feed(data))
        except Malformed as exc:
            raise _over(f"the bus speaks no D-Bus: {exc}") from exc

    def _patience_s(self) -> float:
        return self._manners.ping_s if not self._asked else min(self._asked.values()) - self._clock()

    async def _read(self, patience_s: float) -> bytes:
        if self._asked and patience_s <= 0:
            raise _over(f"the bus owes an answer for {self._manners.answer_s:g} s")
        try:
            async with asyncio.timeout(patience_s):
                data = await self._stream.read(_CHUNK_BYTES)
        except TimeoutError:
            return self._silence()
        if not data:
            raise TransportError(Reason.TRANSPORT_LOST, "the bus closed the stream")
        return data

    def _silence(self) -> bytes:
        """A time-out: it owed nothing and is asked whether it lives, or an answer still has time, or it is over."""
        if self._systemd is None or min(self._asked.values(), default=inf) <= self._clock():
            raise _over(f"the bus gave no answer within {self._manners.answer_s:g} s")
        if not self._asked:
            self._send(*_SYSTEMD, "org.freedesktop.DBus.Peer", "Ping")
        return b""

    def _send(self, destination: str, path: str, interface: str, member: str, *strings: str) -> int:
        self._serial += 1
        self._asked[self._serial] = self._clock() + self._manners.answer_s
        self._stream.write(call(self._serial, destination, path, interface, member, *strings))
        return self._serial

    def _take(self, heard: Heard) -> bool:
        """Whether a matched unit may have changed by it."""
        if heard.kind == SIGNAL:
            return self._signalled(heard)
        if heard.answers not in self._asked:
            return False
        if heard.kind == ERROR:
            raise _over(f"the bus refused: {heard.error}")
        del self._asked[heard.answers]
        return heard.answers in self._paths.values()

    def _signalled(self, heard: Heard) -> bool:
        """Anybody on the host may send a signal straight to us: only the bus's own and systemd's count."""
        if heard.member == "NameOwnerChanged" and heard.sender == _BUS[0]:
            raise TransportError(Reason.TRANSPORT_LOST, "systemd left the bus, or came back to it")
        ours = heard.path in self._paths and heard.interface == _PROPERTIES and heard.sender == self._systemd
        self.signals += ours
        return ours


def _rule(path: str) -> str:
    return f"type='signal',sender='{_SYSTEMD[0]}',interface='{_PROPERTIES}',member='PropertiesChanged',path='{path}'"


def _over(message: str) -> TransportError:
    return TransportError(Reason.BUS_UNAVAILABLE, message)
