"""One live connection to a host, and one command on it.

Called by `pool`. It opens channels and gathers what comes; it makes no connection, and repeats nothing but the opening
of a channel that sshd had no place for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import asyncssh
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.ssh.argv import Finished
from daemon.ssh.road import Gathering
from daemon.ssh.socket import HostSocket, open_through

_CLOSE_S = 2.0


class Gone(Exception):
    """The connection turned out dead before the command was handed over."""


class SocketRefused(Exception):
    """sshd opened no such socket; the connection itself stays good."""


class _Full(Exception):
    """sshd opens no further channel now (MaxSessions); the connection itself stays good."""


class Link:
    """One live connection. Once retired it takes no new commands and closes as the last of the old ones ends."""

    def __init__(
        self, conn: asyncssh.SSHClientConnection, through: Link | None, commands_at_once: int, output_limit_bytes: int
    ) -> None:
        self.conn = conn
        self.slots = asyncio.Semaphore(commands_at_once)
        self._limit = output_limit_bytes
        self._through = contextlib.ExitStack()
        self._users = 0
        self._retired = False
        if through is not None:
            self._through.enter_context(through.held())

    @property
    def usable(self) -> bool:
        return not self._retired and not self.conn.is_closed()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps a retired connection open for the length of one command, or of a connection that goes through it."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired and self._users == 0:
                self.drop()

    def retire(self) -> None:
        self._retired = True
        if self._users == 0:
            self.drop()

    def drop(self) -> None:
        """Closes at once; a command still on it ends as TransportLost. May be called twice."""
        self._retired = True
        self.conn.close()
        self._through.close()

    async def closed(self) -> None:
        """After `drop`: waits for the end, but not long, since a frozen peer acknowledges nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.conn.wait_closed()

    async def run(self, line: str, stdin: bytes, handed_over: Callable[[], None]) -> Finished:
        """One command to its end; `handed_over` is called at the moment from which it may have been started.

        Raises:
            Gone: the connection was dead, and the command was certainly not started.
            TransportError: no outcome that can be believed.
        """
        session = await self._open(line, handed_over)
        assert session.channel is not None
        with contextlib.suppress(BrokenPipeError):  # it ended without reading, which is its right
            session.channel.write(stdin)
            session.channel.write_eof()
        await session.ended
        return session.gathered.finished(session.exit_status, session.why_none)

    async def open_socket(self, path: str) -> HostSocket:
        """A socket there. It keeps nothing open: a retired connection takes it along.

        Raises:
            SocketRefused: there is none, or sshd forbids it.
            TransportError: the connection is gone.
        """
        try:
            return await open_through(self.conn, path)
        except (asyncssh.Error, OSError) as exc:
            if isinstance(exc, asyncssh.ChannelOpenError) and not self.conn.is_closed():
                raise SocketRefused(str(exc)) from exc
            raise TransportError(Reason.TRANSPORT_LOST, f"cut while {path} was opened: {exc}") from exc

    async def _open(self, line: str, handed_over: Callable[[], None]) -> _Session:
        """A channel with the command on it. One refused for their number is asked for again, without an end."""
        session = _Session(self._limit, handed_over)
        waits = wait_random_exponential(multiplier=0.05, max=1.0)
        async for attempt in AsyncRetrying(wait=waits, retry=retry_if_exception_type(_Full)):
            with attempt:
                await self._open_once(session, line)
        return session

    async def _open_once(self, session: _Session, line: str) -> None:
        try:
            await self.conn.create_session(lambda: session, line, encoding=None, request_pty=False)
        except (asyncssh.Error, OSError) as exc:
            refused = isinstance(exc, asyncssh.ChannelOpenError) and not self.conn.is_closed()
            if session.channel is None:
                raise (_Full if refused else Gone)(str(exc)) from exc
            if refused:
                raise TransportError(Reason.UNREACHABLE, f"sshd gives this user no commands: {exc}") from exc
            raise TransportError(Reason.TRANSPORT_LOST, f"cut while it was started: {exc}", maybe_done=True) from exc


class _Session(asyncssh.SSHClientSession[bytes]):
    """Gathers one command's output; `ended` is set when its channel is closed or the limit is passed."""

    def __init__(self, limit: int, handed_over: Callable[[], None]) -> None:
        self.gathered = Gathering(limit)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.exit_status: int | None = None
        self.why_none = "the connection was lost"
        self._handed_over = handed_over

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is open; asyncssh asks for the command next."""
        self.channel = chan
        self._handed_over()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if not self.gathered.add(data, is_stderr=datatype is not None) and self.channel is not None:
            self.channel.abort()
            self._end()

    def exit_status_received(self, status: int) -> None:
        self.exit_status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.why_none = f"killed by SIG{signal}"

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
