"""The wire to one simulated host: a listening socket on loopback, and what goes wrong below SSH.

Used by `server`. Bytes are carried between a client and a connected socket that somebody serves; cut, frozen and slow
happen here, so that neither end knows of it. It reads no byte of what it carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Literal

State = Literal["up", "cut", "frozen"]
CHUNK = 65536


class Wire:
    """One host's. `set` may be called at any time; what was connected when it was cut stays dropped."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._state: State = "up"
        self._delay_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self._listens = asyncio.Event()
        self._open: set[socket.socket] = set()

    def bind(self, address: str) -> int:
        """Listen on any free port of the address; the port.

        Bound a second time by its number: only then does the system keep the port while nobody listens on it.
        """
        with socket.create_server((address, 0)) as first:
            place = first.getsockname()
        self._listener = socket.create_server(place, backlog=64)
        self._listener.setblocking(False)
        self._listens.set()
        port: int = place[1]
        return port

    def close(self) -> None:
        """Stop listening, drop all. May be called twice."""
        self._drop()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def set(self, state: State, delay_s: float = 0.0) -> None:
        """From now on; `delay_s` is added to every piece of bytes in either direction."""
        was, self._state, self._delay_s = self._state, state, delay_s
        listener = self._listener
        if state == "frozen":
            self._flows.clear()
        else:
            self._flows.set()
        if state == "cut" != was and listener is not None:
            self._listens.clear()
            listener.shutdown(socket.SHUT_RD)  # stops listening: who comes now is refused
            self._drop()
        if was == "cut" != state and listener is not None:
            listener.listen(64)
            self._listens.set()

    async def accept(self, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Take connections until cancelled; each is handed over as a socket of its own."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while self._listener is not None:
                await self._listens.wait()
                with contextlib.suppress(OSError):  # cut while it waited
                    far, _ = await loop.sock_accept(self._listener)
                    group.create_task(self._carry(far, serve))

    async def _carry(self, far: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        near, served = socket.socketpair()
        self._open |= {far, near}
        try:
            for one in (far, near):
                one.setblocking(False)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(far, near))
                group.create_task(self._pump(near, far))
                group.create_task(serve(served))  # type: ignore[arg-type]
        finally:
            for one in (far, near):
                self._open.discard(one)
                one.close()

    async def _pump(self, source: socket.socket, target: socket.socket) -> None:
        """One direction until its end, which is passed on."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while piece := await loop.sock_recv(source, CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                await loop.sock_sendall(target, piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _drop(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
