"""One handshake: whom the daemon trusts, how it proves itself, and the reason when no connection comes of it.

Called by `pool` alone, inside its limit of handshakes at once. It makes one attempt, within its two time limits, and
reads nothing of the user's own ssh files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from daemon.domain.errors import TransportError
from daemon.domain.host import Ssh
from daemon.domain.status import Reason
from daemon.ssh.road import OUTPUT_LIMIT_BYTES

_Pins = asyncssh.SSHKnownHosts | list[asyncssh.SSHKey]
_KEY_REFUSED = "is the daemon's key authorized there?"
_NO_KEY = (
    "no key at all was at hand: set STOKER_SSH_IDENTITY to a key's file, or STOKER_SSH_AGENT=true with a key in it"
)
_HostKeys = tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How the daemon proves itself, whom it trusts, and how long it waits. Nothing comes from the user's ssh files.

    `identity` is a private key file (a certificate beside it, `KEY-cert.pub`, is used), `agent` an agent's socket.
    `connect_timeout_s` ends with TCP's answer, `login_timeout_s` covers banner, keys and authentication after it.
    """

    identity: Path | None = None
    agent: str | None = None
    known_hosts: Path | None = None
    accept_unknown_host_keys: bool = False  # a key that differs from a pinned one is refused even then
    connect_timeout_s: float = 10.0
    login_timeout_s: float = 15.0
    keepalive_s: float = 15.0
    keepalive_count: int = 3
    commands_at_once: int = 5  # sshd's MaxSessions is 10, and abandoned commands count
    handshakes_at_once: int = 8  # at one sshd, or through one jump host; sshd's MaxStartups drops from 10 on
    handshake_jitter_s: float = 0.3
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES


class LostBeforeLogin(TransportError):
    """The server hung up before authentication, as one beyond MaxStartups does: worth one more try."""


async def connect(
    name: str,
    ssh: Ssh,
    settings: SshSettings,
    through: asyncssh.SSHClientConnection | None,
    connected: Callable[[], None],
) -> asyncssh.SSHClientConnection:
    """A logged-in connection to host `name`, perhaps through a jump host's; `connected` is told when TCP answered.

    Raises:
        TransportError: with the reason, and a message that names user, address and what to do.
    """
    door = _Door(await _pins(ssh, settings), settings, connected)
    async with _keys(settings) as keys:
        door.has_key = keys is not None
        try:
            async with asyncio.timeout(settings.connect_timeout_s) as door.limit:
                return await _connect(ssh, settings, through, door, keys)
        except (asyncssh.Error, OSError, UnicodeError) as exc:
            reason, text = _reason(exc, door)
            kind = LostBeforeLogin if reason is None else TransportError
            where = f"{name}: {ssh.user}@{ssh.address} port {ssh.port}"
            raise kind(reason or Reason.UNREACHABLE, f"{where}: {text}") from exc


class _Door(asyncssh.SSHClient):
    """Watches one handshake: how far it came, whether a key was pinned, and which key was offered."""

    def __init__(self, pins: _Pins, settings: SshSettings, connected: Callable[[], None]) -> None:
        self._pins = pins
        self._settings = settings
        self._told = connected
        self.known_hosts = settings.known_hosts or "known_hosts"
        self.limit: asyncio.Timeout | None = None
        self.connected = False
        self.keyed = False
        self.pinned = False
        self.has_key = False
        self.offered = ""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connected = True
        self._told()
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + self._settings.login_timeout_s)

    def trusted(self, host: str, addr: str, port: int | None) -> _HostKeys:
        """Host keys, CA keys and revoked keys for that address; hashes, patterns and markers are the library's."""
        if isinstance(self._pins, list):
            found: _HostKeys = (self._pins, [], [])
        else:
            keys, authorities, revoked, *_ = self._pins.match(host, addr, port)
            found = (list(keys), list(authorities), list(revoked))
        self.pinned = any(found)
        return found

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.offered = key.export_public_key().decode("ascii").strip()
        return self._settings.accept_unknown_host_keys and not self.pinned

    def begin_auth(self, username: str) -> None:
        self.keyed = True


async def _connect(
    ssh: Ssh,
    settings: SshSettings,
    through: asyncssh.SSHClientConnection | None,
    door: _Door,
    keys: list[asyncssh.SSHKeyPair] | None,
) -> asyncssh.SSHClientConnection:
    """`config=None` and everything explicit: by default asyncssh reads the user's ssh files and asks their agent.

    No `connect_timeout` of its own (`connect` has one): asyncssh 2.24 hands that to `asyncio.wait_for`, which in
    Python 3.11 drops a cancellation that meets the result, so that a caller who was to end would go on.
    """
    return await asyncssh.connect(
        ssh.address,
        ssh.port,
        username=ssh.user,
        client_factory=lambda: door,
        tunnel=through,
        config=None,
        known_hosts=door.trusted,
        client_keys=keys,
        agent_path=None,
        x509_trusted_certs=None,
        preferred_auth=("publickey",),
        gss_host=None,
        utf8_decode_errors="replace",
        login_timeout=settings.login_timeout_s,
        keepalive_interval=settings.keepalive_s,
        keepalive_count_max=settings.keepalive_count,
    )


def _reason(exc: Exception, door: _Door) -> tuple[Reason | None, str]:
    """The reason and its text; None: lost before the login, for no reason that the server gave."""
    late = Reason.SSH_BANNER_TIMEOUT if door.connected else Reason.CONNECT_TIMEOUT
    told = str(exc) or type(exc).__name__
    match exc:
        case TimeoutError():
            return late, "no answer in time; is it up, and the address right?"
        case asyncssh.HostKeyNotVerifiable() if door.pinned:
            return Reason.HOST_KEY_CHANGED, f"{told}; offered {door.offered or 'another'}"
        case asyncssh.HostKeyNotVerifiable():
            hint = f"compare it at the host's console, then set hostKey, or add it to {door.known_hosts}"
            return Reason.HOST_KEY_UNKNOWN, f"offered {door.offered}; {hint}"
        case asyncssh.KeyExchangeFailed() if door.pinned and "host key" in told:
            return Reason.HOST_KEY_CHANGED, f"no key of the pinned type: {told}"
        case asyncssh.PermissionDenied():
            return Reason.AUTH_FAILED, f"{told}; {_KEY_REFUSED if door.has_key else _NO_KEY}"
        case asyncssh.DisconnectError() if "authentication failures" in told:
            return Reason.AUTH_FAILED, f"{told}; the agent holds too many keys"
        case UnicodeError() | asyncssh.ProtocolError() if "banner" in told or isinstance(exc, UnicodeError):
            return Reason.BANNER_NOT_UTF8, f"{told}; mend the Banner file of its sshd"
        case asyncssh.ConnectionLost() if "timeout" in told:
            return late, told
        case asyncssh.ConnectionLost() | ConnectionResetError() if not door.keyed:
            return None, f"it hung up before the login ({told}); look at MaxStartups and the log of its sshd"
    return Reason.UNREACHABLE, told


async def _pins(ssh: Ssh, settings: SshSettings) -> _Pins:
    """The host's own `hostKey`, else the known_hosts file, read anew each time; neither: nothing is pinned."""
    try:
        if ssh.host_key is not None:
            return [asyncssh.import_public_key(ssh.host_key)]
        if settings.known_hosts is not None:
            return await asyncio.to_thread(asyncssh.read_known_hosts, str(settings.known_hosts))
    except FileNotFoundError:
        return []
    except (ValueError, OSError) as exc:
        source = "hostKey" if ssh.host_key is not None else str(settings.known_hosts)
        raise TransportError(Reason.HOST_KEY_UNKNOWN, f"{ssh.address}: {source} cannot be read: {exc}") from exc
    return []


@contextlib.asynccontextmanager
async def _keys(settings: SshSettings) -> AsyncIterator[list[asyncssh.SSHKeyPair] | None]:
    """The agent's keys, then the identity. None instead of an empty list, which would mean the user's own files."""
    async with contextlib.AsyncExitStack() as stack:
        keys: list[asyncssh.SSHKeyPair] = []
        try:
            if settings.agent is not None:
                agent = await stack.enter_async_context(asyncssh.connect_agent(settings.agent))
                keys.extend(await agent.get_keys())
            if settings.identity is not None:
                keys.extend(await asyncio.to_thread(asyncssh.load_keypairs, [str(settings.identity)]))
        except (ValueError, OSError) as exc:
            raise TransportError(Reason.AUTH_FAILED, f"the daemon's own key or agent cannot be used: {exc}") from exc
        yield keys or None
