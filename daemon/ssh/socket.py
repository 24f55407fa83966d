"""A socket of the host, opened through the connection to it or, on this machine, directly.

Called by `link` and `road`. Bytes only: what is spoken on it is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import asyncssh

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason

BUFFER_BYTES = 64 * 1024  # what waits unread here; the host's side waits beyond it


class _Reads(Protocol):
    async def read(self, n: int, /) -> bytes: ...


class _Writes(Protocol):
    def write(self, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True)
class HostSocket:
    """An open one. `abort` lets go of it without waiting for anybody."""

    reads: _Reads
    writes: _Writes
    abort: Callable[[], None]

    async def read(self, most: int) -> bytes:
        """What came, b"" at the end. Raises TransportError when the connection went."""
        try:
            return await self.reads.read(most)
        except (asyncssh.Error, OSError) as exc:
            raise TransportError(Reason.TRANSPORT_LOST, f"the socket was cut: {exc}") from exc

    def write(self, data: bytes) -> None:
        """Raises TransportError when the connection went."""
        try:
            self.writes.write(data)
        except OSError as exc:
            raise TransportError(Reason.TRANSPORT_LOST, f"the socket was cut: {exc}") from exc

    def close(self) -> None:
        """May be called twice."""
        self.abort()


async def open_through(conn: asyncssh.SSHClientConnection, path: str) -> HostSocket:
    """Raises asyncssh.ChannelOpenError: sshd would not, or could not connect it, which it does not tell apart."""
    reader, writer = await conn.open_unix_connection(path, window=BUFFER_BYTES)
    return HostSocket(reader, writer, writer.channel.abort)


async def open_here(path: str) -> HostSocket:
    """Raises OSError."""
    reader, writer = await asyncio.open_unix_connection(path, limit=BUFFER_BYTES)
    return HostSocket(reader, writer, writer.transport.abort)
