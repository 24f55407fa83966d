"""A small message bus with a systemd on it, at the end of a road; its messages are made and read by dbus-fast."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from dbus_fast import Message, MessageType, Variant
from dbus_fast._private.unmarshaller import Unmarshaller

from daemon.bus import Manners, Seams, Watches, WatchLimits
from daemon.bus.wire import object_path
from daemon.domain.errors import TransportError
from daemon.domain.status import Event, Reason
from daemon.ssh.socket import HostSocket

UNIT = "stoker-m.server.service"
SYSTEMD = ":1.0"
QUICK = WatchLimits(Manners(answer_s=0.5, ping_s=0.2, spacing_s=0.01), retry_s=0.05, unwatched_period_s=5.0)

Talk = Callable[["FakeBus", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def orderly(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The whole protocol, as long as the other end stays."""
    for said, answer in ((b"\0AUTH EXTERNAL\r\n", b"DATA\r\n"), (b"DATA\r\n", b"OK 12ab\r\n"), (b"BEGIN\r\n", b"")):
        assert await reader.readuntil(b"\r\n") == said
        writer.write(answer)
    while True:
        fixed = await reader.readexactly(16)
        body, _, fields = (int.from_bytes(fixed[at : at + 4], "little") for at in (4, 8, 12))
        whole = fixed + await reader.readexactly(fields + -fields % 8 + body)
        message = Unmarshaller(io.BytesIO(whole)).unmarshall()
        assert message is not None
        bus.take(message, writer)


def packed(message: Message, sender: str) -> bytes:
    """The message as a bus passes it on: with its sender, which dbus-fast leaves out."""
    raw = bytes(message._marshall(False))
    size = int.from_bytes(raw[12:16], "little")
    head, body = raw[16 : 16 + size], raw[16 + size + -size % 8 :]
    head += bytes(-size % 8) + b"\7\1s\0" + len(sender).to_bytes(4, "little") + sender.encode() + b"\0"
    return raw[:12] + len(head).to_bytes(4, "little") + head + bytes(-len(head) % 8) + body


@dataclass
class FakeBus:
    """`mute` members are never answered, `refused` ones with an error. `rules` are the matches that stand."""

    talk: Talk = orderly
    mute: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    subscribed: bool = False
    opened: int = 0
    lost: str | None = None  # the road opens no socket: with this reason, and message
    _writer: asyncio.StreamWriter | None = None
    _server: asyncio.TaskGroup | None = None

    async def open_socket(self, path: str, timeout_s: float) -> HostSocket:
        assert path == "/run/dbus/system_bus_socket"
        if self.lost is not None:
            raise TransportError(self.lost, f"no socket: {self.lost}")
        self.opened += 1
        near, far = socket.socketpair()
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        assert self._server is not None
        self._server.create_task(self._serve(far_reader, far_writer))
        reader, writer = await asyncio.open_connection(sock=near)
        return HostSocket(reader, writer, writer.transport.abort)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.rules.clear()
        self.subscribed = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self.talk(self, reader, writer)
        writer.transport.abort()

    def take(self, message: Message, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.calls.append(message.member or "")
        if message.member == "Hello":
            self.send(
                Message.new_signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameAcquired", "s", [":1.9"])
            )
        if message.member in self.mute:
            return
        match message.member:
            case "AddMatch":
                self.rules.append(message.body[0])
            case "RemoveMatch":
                self.rules.remove(message.body[0])
            case "Subscribe":
                self.subscribed = True
        if message.member in self.refused:
            self.send(Message.new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "not for you"))
        else:
            self.send(
                Message.new_method_return(
                    message, "s" if message.member == "Hello" else "", [":1.9"][: message.member == "Hello"]
                )
            )

    def send(self, message: Message, sender: str = SYSTEMD) -> None:
        """To whoever is connected, without asking a rule."""
        assert self._writer is not None
        message.serial = 77
        self._writer.write(packed(message, sender))

    def changed(self, unit: str = UNIT, sender: str = SYSTEMD, *, straight: bool = False) -> None:
        """As systemd 252 says it, to those who subscribed and whose match lets it through; straight: to anybody."""
        path = object_path(unit)
        if straight or (self.subscribed and any(f"path='{path}'" in rule for rule in self.rules)):
            body = ["org.freedesktop.systemd1.Unit", {"ActiveState": Variant("s", "failed")}, ["Job"]]
            self.send(
                Message(
                    message_type=MessageType.SIGNAL, path=path, interface="org.freedesktop.DBus.Properties",
                    member="PropertiesChanged", signature="sa{sv}as", body=body,
                ),
                sender,
            )  # fmt: skip

    def raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()


@dataclass
class Owner:
    """What a controller is to its watches."""

    watches: Watches
    pokes: list[str]
    events: list[Event]
    failures: list[BaseException]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.002)

    async def watched(self, bus: FakeBus, *units: str, name: str = "a") -> None:
        """A fine look, and the watch that follows."""
        self.watches.seen(name, "", bus, units or (UNIT,))
        await self.until(lambda: self.watches.is_up(name) and name in self.pokes)
        self.pokes.clear()

    def told(self) -> list[tuple[Reason, str]]:
        return [(event.reason, event.message) for event in self.events]


@contextlib.asynccontextmanager
async def owner(*buses: FakeBus, limits: WatchLimits = QUICK) -> AsyncIterator[Owner]:
    """Ends everything within a second, or fails."""
    pokes: list[str] = []
    events: list[Event] = []
    failures: list[BaseException] = []

    async def say(event: Event) -> None:
        events.append(event)

    async def edge(work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as exc:
            failures.append(exc)

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20) as limit, asyncio.TaskGroup() as servers:
        for bus in buses:
            bus._server = servers
        tasks: set[asyncio.Task[None]] = set()

        def spawn(name: str, work: Awaitable[None]) -> asyncio.Task[None]:
            task = servers.create_task(edge(work))
            tasks.add(task)
            return task

        seams = Seams(pokes.append, spawn, say, lambda: 0.5, loop.time)  # type: ignore[arg-type]
        yield Owner(Watches(limits, seams), pokes, events, failures)
        for task in tasks:
            task.cancel()
        limit.reschedule(loop.time() + 1)
    assert failures == []
