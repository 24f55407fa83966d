"""A simulated host behind a real SSH server on a loopback port, with faults of the wire.

Made by `stoker demo` and by tests; the only module of the simulated fleet that imports asyncssh. Each command goes to
the machine's `answer`, `/run/dbus/system_bus_socket` to its `Bus`. Only the public key that was made for the occasion
is let in, and nothing but 127.0.0.1 is ever listened on. A machine has no clock of its own: this one tells it when its
next inner change is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol

import asyncssh

from daemon.sim.bus import Bus
from daemon.sim.bus_units import UnitFacts
from daemon.sim.wire import Wire

LOOPBACK = "127.0.0.1"
BUS_SOCKETS = ("/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket")
MAX_STDIN = 8 << 20
IDLE_S = 1.0
State = Literal["up", "cut", "frozen"]


class Answered(Protocol):
    """What one command printed and how it ended."""

    @property
    def exit_status(self) -> int:
        """0 to 255."""

    @property
    def stdout(self) -> bytes:
        """All of it."""

    @property
    def stderr(self) -> bytes:
        """All of it."""

    @property
    def took_s(self) -> float:
        """How long the command ran."""


class Machine(Protocol):
    """The part of a simulated host that the server needs."""

    @property
    def on_unit_change(self) -> list[Callable[[str], None]]:
        """Whoever is told a unit's name when its state changes."""

    def answer(self, argv: Sequence[str], stdin: bytes) -> Answered:
        """Carry one command out at once."""

    def advance(self) -> None:
        """Bring the state up to now."""

    def due(self) -> float | None:
        """When the next inner change happens, on the machine's clock."""


class SimServer:
    """One machine's sshd. Use `opened`; its faults may be set at any time, from the loop's thread."""

    def __init__(
        self,
        machine: Machine,
        facts: Callable[[str], UnitFacts],
        names: Callable[[], Iterable[str]],
        client_key: asyncssh.SSHKey,
        now: Callable[[], float],
    ) -> None:
        self.machine = machine
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.bus = Bus(facts, names)
        self.port = 0
        self.commands = 0
        self._now = now
        self._wire = Wire()
        self._touched = asyncio.Event()
        self._changed: dict[str, None] = {}
        self._options = asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: _Door(self.bus),
            server_host_keys=[self.host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(client_key.export_public_key().decode()),
            process_factory=self._command,
            encoding=None,
            password_auth=False,
            kbdint_auth=False,
            gss_host=None,
            allow_pty=False,
            agent_forwarding=False,
            x11_forwarding=False,
        )

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[SimServer]:
        """Listening until the end of the block; then nothing of it is left."""
        self.machine.on_unit_change.append(self._note_change)
        try:
            async with asyncio.TaskGroup() as group:
                self.port = self._wire.bind(LOOPBACK)
                tasks = [group.create_task(self._wire.accept(self._connection)), group.create_task(self._tick())]
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            self._wire.close()
            self.machine.on_unit_change.remove(self._note_change)

    @property
    def host_key_line(self) -> str:
        """The host key as `hostKey` of a manifest wants it: TYPE BASE64."""
        return " ".join(self.host_key.export_public_key().decode().split()[:2])

    def known_hosts_line(self) -> str:
        """The line of a known_hosts file."""
        return f"[{LOOPBACK}]:{self.port} {self.host_key_line}\n"

    def set_wire(self, state: State, delay_s: float = 0.0) -> None:
        """`cut`: connections are dropped and new ones refused; `frozen`: taken, never answered; `delay_s`: slow."""
        self._wire.set(state, delay_s)

    def touch(self) -> None:
        """Something was done to the machine from outside: its next change may be due sooner."""
        self._touched.set()

    def _note_change(self, unit: str) -> None:
        """Told on the bus when the machine's move is over: in the middle of one nobody may ask for its state."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell_changes)
        self._changed[unit] = None

    def _tell_changes(self) -> None:
        changed, self._changed = self._changed, {}
        for unit in changed:
            self.bus.changed(unit)

    async def _tick(self) -> None:
        """Wake the machine when something inside it is due, so that the bus tells it the moment it happens."""
        while True:
            self._touched.clear()
            self.machine.advance()
            due = self.machine.due()
            wait_s = IDLE_S if due is None else min(max(due - self._now(), 0.005), IDLE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._touched.wait(), wait_s)

    async def _connection(self, near: socket.socket) -> None:
        """One SSH connection on a connected socket, to its end."""
        with contextlib.suppress(asyncssh.Error, OSError):
            conn = await asyncssh.run_server(near, options=self._options)
            try:
                await conn.wait_closed()
            finally:
                conn.abort()

    async def _command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        argv = parsed(process.command or "")
        stdin = await _read_stdin(process.stdin)
        self.commands += 1
        done = self.machine.answer(argv, stdin)
        self.touch()
        await asyncio.sleep(done.took_s)
        with contextlib.suppress(asyncssh.Error, OSError):  # cut meanwhile: it was carried out all the same
            process.stdout.write(done.stdout)
            process.stderr.write(done.stderr)
            await process.stdout.drain()
            process.exit(done.exit_status)


class _Door(asyncssh.SSHServer):
    """Who may come in is decided by the options; of what may be forwarded, only the system bus exists."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def unix_connection_requested(
        self, dest_path: str
    ) -> Callable[[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]], Awaitable[None]]:
        """A direct-streamlocal channel."""
        if dest_path not in BUS_SOCKETS:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, f"no socket at {dest_path}")
        return self._bus.serve


def parsed(command: str) -> tuple[str, ...]:
    """The argument list out of what a client sends to sshd: `/bin/sh -c 'export …; exec [sudo -n --] ARGV'`.

    Text that cannot be read as that is given whole, for the machine to refuse.
    """
    try:
        words = shlex.split(command)
        if words[:2] != ["/bin/sh", "-c"] or len(words) != 3:
            return tuple(words)
        inner = shlex.split(words[2])
    except ValueError:
        return (command,)
    argv = inner[inner.index("exec") + 1 :] if "exec" in inner else inner
    return tuple(argv[3:] if argv[:3] == ["sudo", "-n", "--"] else argv)


async def _read_stdin(reader: asyncssh.SSHReader[bytes]) -> bytes:
    """Standard input to its end, or to the end of a helper's request that names the lengths of what follows it."""
    got = b""
    while len(got) < MAX_STDIN and not _request_whole(got):
        more = await reader.read(65536)
        if not more:
            break
        got += more
    return got


def _request_whole(got: bytes) -> bool:
    head, mark, rest = got.partition(b"\n.\n")
    if not mark or not head.startswith(b"nonce "):
        return False
    lengths = [line.split(b" ", 1)[1] for line in head.split(b"\n") if line.startswith((b"body ", b"gate "))]
    return len(rest) >= sum(int(length) for length in lengths if length.isdigit())
