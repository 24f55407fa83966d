"""A real SSH server on loopback that runs real commands with /bin/sh, and can be frozen, cut, or made to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import pytest
from asyncssh.constants import MSG_USERAUTH_BANNER
from asyncssh.packet import String

from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh import Roads, SshSettings

LINE = str  # one `TYPE BASE64` line, as in a manifest's hostKey


@dataclass
class Sshd:
    """What one server does, and what it saw."""

    port: int = 0
    host_key: LINE = ""
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    logins: int = 0
    running: int = 0
    most_running: int = 0
    commands: list[str] = field(default_factory=list)
    sessions_max: int = 10
    hang_up_first: int = 0  # this many connections are cut at their first byte
    banner: bytes | None = None
    banner_language: bytes = b""
    no_exit_status: bool = False
    sockets: bool = False  # whether it opens sockets of this machine for its clients
    die_by_signal: bool = False
    accept_key: LINE | None = None  # None: anybody may log in
    children: set[asyncio.subprocess.Process] = field(default_factory=set)
    shaking: int = 0
    most_shaking: int = 0

    def cut(self) -> None:
        for conn in self.connections:
            conn.abort()

    def freeze(self) -> None:
        """As SIGSTOP of sshd: the kernel still acknowledges, but nobody reads or writes."""
        for conn in self.connections:
            transport = conn._transport
            if transport is not None and not transport.is_closing():
                transport.pause_reading()

    @property
    def open_connections(self) -> int:
        return sum(not conn.is_closed() for conn in self.connections)


class _Server(asyncssh.SSHServer):
    def __init__(self, sshd: Sshd) -> None:
        self._sshd = sshd
        self._sessions = 0
        self._conn: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._sshd.connections.append(conn)
        self._sshd.shaking += 1
        self._sshd.most_shaking = max(self._sshd.most_shaking, self._sshd.shaking)
        if self._sshd.hang_up_first > 0:
            self._sshd.hang_up_first -= 1
            conn.abort()

    def begin_auth(self, username: str) -> bool:
        if self._sshd.banner is not None and self._conn is not None:
            self._conn.send_packet(MSG_USERAUTH_BANNER, String(self._sshd.banner), String(self._sshd.banner_language))
        return self._sshd.accept_key is not None

    def auth_completed(self) -> None:
        self._sshd.logins += 1
        self._sshd.shaking -= 1

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return line_of(key) == self._sshd.accept_key

    def public_key_auth_supported(self) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return self._sshd.sockets

    def session_requested(self) -> asyncssh.SSHServerProcess[bytes]:
        if self._sessions >= self._sshd.sessions_max:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, "open failed")
        self._sessions += 1
        return asyncssh.SSHServerProcess(self._handle, None, 3, False)

    async def _handle(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        sshd = self._sshd
        sshd.running += 1
        sshd.most_running = max(sshd.most_running, sshd.running)
        sshd.commands.append(process.command or "")
        try:
            await self._command(process)
        finally:
            sshd.running -= 1
            self._sessions -= 1

    async def _command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        sshd = self._sshd
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        sshd.children.add(child)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_feed(process, child))
                pumps.create_task(_drain(child, child.stdout, process.stdout))
                pumps.create_task(_drain(child, child.stderr, process.stderr))
            status = await child.wait()
        finally:
            sshd.children.discard(child)
            child._transport.close()  # type: ignore[attr-defined]  # else its pipes outlive the loop
        if sshd.no_exit_status:
            process.close()
        elif sshd.die_by_signal:
            process.exit_with_signal("KILL")
        else:
            process.exit(status)


def _end(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: uvloop on a pipe that is closed
        while data := await process.stdin.read(65536):
            child.stdin.write(data)
            await child.stdin.drain()
    child.stdin.close()


async def _drain(
    child: asyncio.subprocess.Process, source: asyncio.StreamReader | None, sink: asyncssh.SSHWriter[bytes]
) -> None:
    """As sshd does: a closed channel closes the command's outputs, which mostly ends it."""
    assert source is not None
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except (BrokenPipeError, asyncssh.Error):
        _end(child)


@contextlib.asynccontextmanager
async def serve(sshd: Sshd | None = None, key: asyncssh.SSHKey | None = None, **options: object) -> AsyncIterator[Sshd]:
    sshd = sshd or Sshd()
    key = key or asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.create_server(
        lambda: _Server(sshd),
        "127.0.0.1",
        0,
        server_host_keys=[key],
        encoding=None,
        config=None,
        gss_host=None,
        login_timeout=5,
        **options,
    )
    sshd.port = server.get_port()
    sshd.host_key = line_of(key)
    try:
        yield sshd
    finally:
        server.close()
        sshd.cut()
        for child in sshd.children:
            _end(child)
        await until(lambda: not sshd.children)
        async with asyncio.timeout(5):
            await server.wait_closed()


def line_of(key: asyncssh.SSHKey) -> LINE:
    return " ".join(key.export_public_key().decode().split()[:2])


def spec_of(sshd: Sshd, **changes: object) -> HostSpec:
    """A host whose key is pinned by its own line; `host_key=None` leaves it to known_hosts."""
    ssh = {"address": "127.0.0.1", "port": sshd.port, "user": "root", "host_key": sshd.host_key or None}
    outer = {name: changes.pop(name) for name in ("sudo", "via") if name in changes}
    return HostSpec.model_validate({"ssh": {**ssh, **changes}, **outer})


@contextlib.asynccontextmanager
async def pool(hosts: dict[str, HostSpec] | None = None, **settings: object) -> AsyncIterator[Roads]:
    quick = {"connect_timeout_s": 2.0, "login_timeout_s": 2.0, "handshake_jitter_s": 0.01, **settings}
    roads = Roads(SshSettings(**quick), (hosts or {}).get)  # type: ignore[arg-type]
    before = asyncio.all_tasks()
    try:
        yield roads
    finally:
        async with asyncio.timeout(5):
            await roads.close()
    await asyncio.sleep(0)
    leaked = {task for task in asyncio.all_tasks() - before if "daemon/ssh" in repr(task)}
    assert not leaked


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def fails(reason: Reason, *, maybe_done: bool = False) -> Iterator[pytest.ExceptionInfo[TransportError]]:
    with pytest.raises(TransportError) as caught:
        yield caught
    assert (caught.value.reason, caught.value.maybe_done) == (reason, maybe_done), caught.value


def known_hosts(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
