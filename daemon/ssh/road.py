"""A road to a host: the protocol every caller sees, bounded gathering of output, and the road to this machine.

Called by `pool`, which has the roads over SSH. It may not retry, judge what a command
printed beyond `argv`, or decide anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.ssh.argv import HELPER_PATH, Finished, Wrap, helper_refusal, refusal, shell_text, wrapped
from daemon.ssh.socket import HostSocket, open_here

OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024  # one section of the helper may have 4 MiB

_CONTAINER_MARKS = (Path("/run/systemd/container"), Path("/.dockerenv"), Path("/run/.containerenv"))


class Road(Protocol):
    """One host's road: everything that happens on a host goes through it."""

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        """Standard output of `stoker-host VERB`, whatever its exit status.

        Raises:
            TransportError: nothing came back that can be believed; `maybe_done` tells whether the verb may have run.
        """
        ...

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        """Any command that ended by itself, with the host's sudo and container before it. Raises as `call`."""
        ...

    async def close(self) -> None:
        """Ends within seconds; what is still running on the host goes on there. May be called twice."""
        ...


class Gathering:
    """Standard output and error of one command, together at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._stdout = bytearray()
        self._stderr = bytearray()
        self.truncated = False

    def add(self, data: bytes, is_stderr: bool) -> bool:
        """False when the limit is passed: what was gathered is then worth nothing."""
        self._left -= len(data)
        if self._left < 0:
            self.truncated = True
            return False
        (self._stderr if is_stderr else self._stdout).extend(data)
        return True

    def finished(self, exit_status: int | None, why_none: str) -> Finished:
        """The whole outcome; a cut or bottomless one is no outcome at all."""
        if self.truncated:
            raise TransportError(Reason.TRUNCATED, "the command wrote more than the limit", maybe_done=True)
        if exit_status is None:
            raise TransportError(Reason.TRANSPORT_LOST, f"no exit status arrived: {why_none}", maybe_done=True)
        return Finished(exit_status, bytes(self._stdout), bytes(self._stderr))


def judged(done: Finished, wrap: Wrap) -> Finished:
    """The outcome itself; raises TransportError when a layer before the command refused it."""
    refused = refusal(done, wrap)
    if refused is not None:
        raise TransportError(*refused)
    return done


def answered(done: Finished) -> bytes:
    """Standard output of the helper; raises TransportError when the helper was never run."""
    refused = helper_refusal(done)
    if refused is not None:
        raise TransportError(*refused)
    return done.stdout


def container_name() -> str | None:
    """The container this process lives in, None on a real machine. Blocks: call it in a thread."""
    for mark in _CONTAINER_MARKS:
        if mark.exists():
            return _first_word(mark) or mark.name
    with contextlib.suppress(OSError):
        if b"\0container=" in b"\0" + Path("/proc/1/environ").read_bytes():
            return "container of PID 1's environment"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(["systemd-detect-virt", "-c"], capture_output=True, timeout=5, check=False)
        if told.returncode == 0:
            return told.stdout.decode("utf-8", "replace").strip()
    return None


def _first_word(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace").strip()[:64]
    return ""


class _Pipes(asyncio.SubprocessProtocol):
    """One local command; `ended` is set when it exited and both outputs are closed, or the limit was passed."""

    def __init__(self, limit: int) -> None:
        self.gathered = Gathering(limit)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if not self.gathered.add(data, is_stderr=fd == 2):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class LocalRoad:
    """This machine, with the manners of SSH: an abandoned command is cut off, never killed half-way by us."""

    def __init__(
        self,
        wrap: Wrap,
        *,
        confined: Callable[[], str | None] = container_name,
        commands_at_once: int = 5,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> None:
        self._wrap = wrap
        self._confined = confined
        self._slots = asyncio.Semaphore(commands_at_once)
        self._limit = output_limit_bytes
        self._allowed = False
        self._closed = False

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        return answered(await self.run((HELPER_PATH, verb), stdin, timeout_s))

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        started = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._refuse_container()
                async with self._slots:
                    if self._closed:
                        raise TransportError(Reason.TRANSPORT_LOST, "the road is closed")
                    started = True
                    return judged(await self._run(shell_text(wrapped(argv, self._wrap)), stdin), self._wrap)
        except TimeoutError:
            raise TransportError(
                Reason.TRANSPORT_LOST, f"no end within {timeout_s:g} s: {argv[0]}", maybe_done=started
            ) from None

    async def open_socket(self, path: str, timeout_s: float) -> HostSocket:
        """A socket of this machine. Raises TransportError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._refuse_container()
                return await open_here(path)
        except OSError as exc:  # TimeoutError is one
            raise TransportError(Reason.UNREACHABLE, f"{path} cannot be opened: {exc or 'no answer in time'}") from exc

    async def close(self) -> None:
        self._closed = True

    async def _refuse_container(self) -> None:
        """`local` in a container would look at the container and believe that it is the machine."""
        if self._allowed:
            return
        name = await asyncio.to_thread(self._confined)
        if name is not None:
            raise TransportError(
                Reason.NOT_SYSTEMD, f"local is refused inside a container ({name}); reach the machine over ssh"
            )
        self._allowed = True

    async def _run(self, text: str, stdin: bytes) -> Finished:
        loop = asyncio.get_running_loop()
        pipes = _Pipes(self._limit)
        transport, _ = await loop.subprocess_exec(lambda: pipes, "/bin/sh", "-c", text, start_new_session=True)
        try:
            _send(cast(asyncio.WriteTransport, transport.get_pipe_transport(0)), stdin)
            await pipes.ended
        finally:
            if transport.get_returncode() is None:
                _let_go(transport)
        code = transport.get_returncode()
        return pipes.gathered.finished(code if code is None or code >= 0 else None, f"killed by signal {-(code or 0)}")


def _send(writer: asyncio.WriteTransport, stdin: bytes) -> None:
    """A command may end without reading, and before this; uvloop then raises on a pipe that is closed."""
    if not writer.is_closing():
        writer.write(stdin)
    if not writer.is_closing():
        writer.write_eof()


def _let_go(transport: asyncio.SubprocessTransport) -> None:
    """What a cut connection does: the outputs close and HUP comes, which the helper's verbs ignore until done.

    The transport itself stays open, since closing it kills the process; it ends with the process.
    """
    for fd in (0, 1, 2):
        pipe = transport.get_pipe_transport(fd)
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGHUP)
