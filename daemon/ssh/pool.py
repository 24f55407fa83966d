"""The road to one host over its one connection, and the pool that makes and remakes roads.

Called by the composition root, which owns `Roads`; everybody else sees a `Road`. It never decides what a lost command
means for the host, repeats only what was certainly not started, and keeps no task of its own: every wait is its
caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Literal
from weakref import WeakSet

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random

from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec, Ssh
from daemon.domain.status import Reason
from daemon.ssh.argv import HELPER_PATH, Finished, command_line, wrap_of, wrapped
from daemon.ssh.door import LostBeforeLogin, SshSettings, connect
from daemon.ssh.link import Gone, Link, SocketRefused
from daemon.ssh.road import LocalRoad, Road, answered, container_name, judged
from daemon.ssh.socket import HostSocket

Resolve = Callable[[str], HostSpec | None]

_HOPS_MAX = 4
_DICE = SystemRandom()


@dataclass(slots=True)
class _Progress:
    """How far one call came: what a time-out or a cancellation then means depends on it."""

    stage: Literal["connect", "queue", "run"] = "connect"
    reason: Reason = Reason.CONNECT_TIMEOUT
    link: Link | None = None
    started: bool = False

    def connected(self) -> None:
        self.reason = Reason.SSH_BANNER_TIMEOUT

    def handed_over(self) -> None:
        self.started = True

    def abandon(self) -> None:
        """A given-up command keeps its channel on the host as long as it lives, so the connection is remade."""
        if self.link is not None and self.stage == "run":
            self.link.retire()

    def why(self) -> str:
        match self.stage:
            case "connect":
                return "still connecting"
            case "queue":
                return "other commands held every place"
            case "run":
                return "the command did not end" if self.started else "no channel was opened"


class SshRoad:
    """The road to one host over its one connection, made when first needed."""

    def __init__(self, name: str, spec: HostSpec, pool: Roads) -> None:
        assert spec.ssh is not None
        self.name = name
        self._ssh: Ssh = spec.ssh
        self._wrap = wrap_of(spec)
        self._pool = pool
        self._lock = asyncio.Lock()
        self._link: Link | None = None
        self._links: list[Link] = []  # the live one, and retired ones that commands still hold
        self._closed = False

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        return answered(await self.run((HELPER_PATH, verb), stdin, timeout_s))

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        return judged(await self._bounded(wrapped(argv, self._wrap), argv[0], stdin, timeout_s), self._wrap)

    async def open_socket(self, path: str, timeout_s: float) -> HostSocket:
        """A socket of the host, on the connection that is there; none is made for it.

        Raises:
            TransportError: TransportLost when there is no connection or it went, else why the host gives no socket.
        """
        if self._wrap.container is not None:
            raise TransportError(Reason.UNREACHABLE, "sockets inside a container are not reached by pct exec")
        link = self._link
        if link is None or not link.usable:
            raise TransportError(Reason.TRANSPORT_LOST, f"{self.name}: not connected")
        try:
            async with asyncio.timeout(timeout_s):
                return await link.open_socket(path)
        except SocketRefused as exc:
            raise TransportError(Reason.UNREACHABLE, await self._why_refused(path, timeout_s)) from exc
        except TimeoutError:
            link.retire()
            raise TransportError(Reason.TRANSPORT_LOST, f"{self.name}: {path}: not within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            link.retire()  # sshd may open it yet, and nobody would close it
            raise

    async def _why_refused(self, path: str, timeout_s: float) -> str:
        """sshd answers the same whether it may not or cannot (OpenSSH 9.2), so the host is asked for the socket."""
        done = await self._bounded(("test", "-S", path), "test", b"", timeout_s)
        if done.exit_status == 0:
            return (
                f"its sshd forbids forwarding to {path}: set AllowStreamLocalForwarding to local or yes there, and look"
                " for DisableForwarding and for options of the daemon's key"
            )
        return f"it has no socket {path}"

    async def _bounded(self, argv: Sequence[str], word: str, stdin: bytes, timeout_s: float) -> Finished:
        """The command as it is given; `word` names it in errors."""
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._run(command_line(argv), stdin, progress)
        except TimeoutError:
            progress.abandon()
            text = f"{self.name}: {word}: not within {timeout_s:g} s: {progress.why()}"
            raise TransportError(progress.reason, text, maybe_done=progress.started) from None
        except asyncio.CancelledError:
            progress.abandon()
            raise

    async def close(self) -> None:
        self._closed = True
        links, self._links, self._link = self._links, [], None
        for link in links:
            link.drop()
        for link in links:
            await link.closed()

    def retire(self) -> None:
        """No new commands; those under way still end as they will."""
        self._closed = True
        if self._link is not None:
            self._link.retire()

    async def link(self, hops: tuple[str, ...], progress: _Progress) -> Link:
        """The live connection, made if there is none; `hops` are the hosts that want to go through this one."""
        if self.name in hops or len(hops) > _HOPS_MAX:
            raise TransportError(Reason.UNREACHABLE, f"jump hosts form a circle or a long chain: {' > '.join(hops)}")
        async with self._lock:
            self._refuse_if_closed()
            if self._link is not None and self._link.usable:
                return self._link
            if self._link is not None:
                self._link.retire()
            link = await self._counted(hops, progress)
            if self._closed:
                link.drop()
            self._refuse_if_closed()
            self._link = link
            self._links = [link, *(old for old in self._links if not old.conn.is_closed())]
            return link

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise TransportError(Reason.TRANSPORT_LOST, f"{self.name}: this road is closed; ask the pool for another")

    async def _run(self, line: str, stdin: bytes, progress: _Progress) -> Finished:
        """Tried again once when the connection had died unnoticed, since nothing was started then."""
        for _ in range(2):
            link = await self.link((), progress)
            with link.held(), contextlib.suppress(Gone):
                progress.stage, progress.reason, progress.link = "queue", Reason.TRANSPORT_LOST, link
                async with link.slots:
                    progress.stage = "run"
                    return await link.run(line, stdin, progress.handed_over)
            link.retire()
            progress.stage, progress.link = "connect", None
        raise TransportError(Reason.TRANSPORT_LOST, f"{self.name}: the connection died twice before the command began")

    @property
    def connected(self) -> bool:
        """Whether a connection is up."""
        return self._link is not None and self._link.usable

    async def _counted(self, hops: tuple[str, ...], progress: _Progress) -> Link:
        try:
            link = await self._dial(hops, progress)
        except TransportError as error:
            self._pool.dialled(str(error.reason))
            raise
        except asyncio.CancelledError:  # its caller's time was over, or its caller
            self._pool.dialled(str(progress.reason))
            raise
        self._pool.dialled("ok")
        return link

    async def _dial(self, hops: tuple[str, ...], progress: _Progress) -> Link:
        through = await self._jump_link(hops, progress)
        tries = AsyncRetrying(
            stop=stop_after_attempt(2),
            wait=wait_random(0.05, 0.5),
            retry=retry_if_exception_type(LostBeforeLogin),
            reraise=True,
        )
        with through.held() if through is not None else contextlib.nullcontext():
            return await tries(self._connect, through, progress)

    async def _connect(self, through: Link | None, progress: _Progress) -> Link:
        settings = self._pool.settings
        async with self._pool.at_the_door(self._ssh.jump or f"{self._ssh.address}:{self._ssh.port}"):
            tunnel = through.conn if through is not None else None
            conn = await connect(self.name, self._ssh, settings, tunnel, progress.connected)
        return Link(conn, through, settings.commands_at_once, settings.output_limit_bytes)

    async def _jump_link(self, hops: tuple[str, ...], progress: _Progress) -> Link | None:
        """The connection to go through. What fails there is told under the jump host's name, not under ours."""
        name = self._ssh.jump
        if name is None:
            return None
        try:
            return await self._pool.jump(name).link((*hops, self.name), progress)
        except TransportError as exc:
            unknown = exc.reason == Reason.HOST_KEY_UNKNOWN
            reason = Reason.JUMP_HOST_KEY_UNKNOWN if unknown else exc.reason
            raise TransportError(reason, f"{self.name}: jump host {name}: {exc.message}") from exc


class Roads:
    """The pool: one road a host name, remade when how it is reached changed. `resolve` finds jump hosts by name."""

    def __init__(
        self, settings: SshSettings, resolve: Resolve, *, confined: Callable[[], str | None] = container_name
    ) -> None:
        self.settings = settings
        self._resolve = resolve
        self._confined = confined
        self._roads: dict[str, tuple[object, SshRoad | LocalRoad]] = {}
        self._left: WeakSet[SshRoad] = WeakSet()  # replaced or forgotten; a command under way keeps one alive
        self._doors: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self.connects: dict[str, int] = {"ok": 0}  # dials by how they ended: ok, or the reason

    def road(self, host: str, spec: HostSpec) -> Road:
        """The host's road; nothing is connected yet. A replaced one still ends what is under way on it.

        Raises:
            TransportError: the pool is closed.
        """
        return self._road(host, spec)

    def jump(self, host: str) -> SshRoad:
        """The road of a host that others go through; its `via` and `sudo` do not matter for that."""
        spec = self._resolve(host)
        if spec is None:
            raise TransportError(Reason.HOST_NOT_FOUND, "no such Host object; apply its manifest, or correct jump")
        road = self._road(host, spec)
        if not isinstance(road, SshRoad):
            raise TransportError(Reason.UNREACHABLE, "a local host is no jump host; leave jump away")
        return road

    def forget(self, host: str) -> None:
        """Lets go of a host that was deleted; what is under way there still ends."""
        _, road = self._roads.pop(host, (None, None))
        if isinstance(road, SshRoad):
            road.retire()
            self._left.add(road)

    @property
    def open_connections(self) -> int:
        """How many connections are up."""
        return sum(isinstance(road, SshRoad) and road.connected for _, road in self._roads.values())

    def dialled(self, result: str) -> None:
        """A dial ended."""
        self.connects[result] = self.connects.get(result, 0) + 1

    async def close(self) -> None:
        """Closes all at once, within seconds. Commands under way end as TransportLost; may be called twice."""
        self._closed = True
        roads = [*(road for _, road in self._roads.values()), *self._left]
        self._roads.clear()
        async with asyncio.TaskGroup() as group:
            for road in roads:
                group.create_task(road.close())

    @contextlib.asynccontextmanager
    async def at_the_door(self, key: str) -> AsyncIterator[None]:
        """One of few handshakes at once through one jump host or at one sshd; those who queued start apart."""
        door = self._doors.setdefault(key, asyncio.Semaphore(self.settings.handshakes_at_once))
        queued = door.locked()
        async with door:
            if queued:
                await asyncio.sleep(_DICE.uniform(0, self.settings.handshake_jitter_s))
            yield

    def _road(self, host: str, spec: HostSpec) -> SshRoad | LocalRoad:
        if self._closed:
            raise TransportError(Reason.TRANSPORT_LOST, f"{host}: the pool of roads is closed")
        way = (spec.ssh, spec.via, spec.uses_sudo)
        known = self._roads.get(host)
        if known is not None and known[0] == way:
            return known[1]
        self.forget(host)
        road = self._local(spec) if spec.ssh is None else SshRoad(host, spec, self)
        self._roads[host] = (way, road)
        return road

    def _local(self, spec: HostSpec) -> LocalRoad:
        return LocalRoad(
            wrap_of(spec),
            confined=self._confined,
            commands_at_once=self.settings.commands_at_once,
            output_limit_bytes=self.settings.output_limit_bytes,
        )
