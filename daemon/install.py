"""Puts `stoker-host` and `gate` on a host, or checks what an administrator put there.

Called by `controller` when a road is new or a look says that the helper is missing, and by `stoker helper`. As root or
with general passwordless sudo both files are pushed over the standard input of the same road as every command. With a
sudoers line for the helper alone nothing can be pushed: its version is asked, and in range it is used.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Literal

from daemon import host
from daemon.domain.errors import TransportError, ended
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh import Finished, Road
from daemon.verbs import ask

OLDEST_VERSION = 2
_STEP_S = 15.0
_DAMAGED = 65

# The scripts hold no line break, since a csh as login shell takes none inside quotes.
# A line per path: `HASH MODE UID`, or a dash where there is no regular file.
_LOOK = (
    'for f; do if [ -f "$f" ] && [ ! -L "$f" ]; then '
    'set -- $(sha256sum < "$f"); echo "$1 $(stat -c \'%a %u\' "$f")"; else echo -; fi; done'
)

# $1 the path, $2 the hash. Written beside its place, checked, synced and renamed: a cut leaves the old file whole.
_PUT = "; ".join(
    (
        "set -eu",
        "umask 077",
        "d=${1%/*}",
        '[ ! -L "$d" ] || { echo "$d is a symbolic link" >&2; exit 73; }',
        'mkdir -p "$d"',
        'chown 0:0 "$d"',
        'chmod 755 "$d"',
        't="$d/.new.${1##*/}.$$"',
        """trap 'rm -f "$t"' EXIT""",
        "trap 'exit 1' HUP INT TERM",
        'cat > "$t"',
        'set -- "$1" "$2" $(sha256sum < "$t")',
        '[ "$2" = "$3" ] || { echo "$1 arrived damaged" >&2; exit 65; }',
        'chown 0:0 "$t"',
        'chmod 755 "$t"',
        'sync "$t" 2>/dev/null || sync',
        'mv -f "$t" "$1"',
        'sync "$d" 2>/dev/null || sync',
    )
)


@dataclass(frozen=True, slots=True)
class InstallOutcome:
    """What stands on the host now. `exact`: both files are this daemon's own, byte for byte."""

    how: Literal["pushed", "current", "checked"]
    version: int
    exact: bool


async def ensure_helper(road: Road, spec: HostSpec, auto: bool) -> InstallOutcome:
    """Makes the helper usable, and proves it by running it. May be called again at any time.

    `auto` False never writes: what an administrator put there is used when its version is in range.

    Raises:
        TransportError: HelperMissing or HelperOutdated (only looks may then be taken) with what to do, SudoDenied,
            or whatever ails the road.
    """
    try:
        stale = await _stale(road) if auto else None
        for path in stale or ():
            await _put(road, path)
    except TransportError as exc:
        if exc.reason != Reason.SUDO_DENIED:
            raise
        stale = None  # a sudoers line for the helper alone
    version = await _version(road, spec)
    return InstallOutcome("checked" if stale is None else "pushed" if stale else "current", version, stale is not None)


def _texts() -> dict[str, bytes]:
    """Gate first: a helper of this version may rely on its gate."""
    return {host.GATE_PATH: host.gate_text(), host.HELPER_PATH: host.helper_text()}


async def _stale(road: Road) -> tuple[str, ...]:
    """The paths whose file differs in text, mode or owner from what this daemon would put there."""
    texts = _texts()
    done = await road.run(("/bin/sh", "-c", _LOOK, "look", *texts), b"", _STEP_S)
    _expect_success(done, "looking at the helper")
    lines = done.stdout.decode("ascii", "replace").splitlines()[-len(texts) :]  # a greeting may stand before them
    if len(lines) < len(texts) or not done.stdout.endswith(b"\n"):
        raise TransportError(Reason.TRUNCATED, "the answer to the look at the helper was cut short")
    wanted = {path: f"{_sha256(text)} 755 0" for path, text in texts.items()}
    return tuple(path for path, line in zip(wanted, lines, strict=True) if line != wanted[path])


async def _put(road: Road, path: str) -> None:
    text = _texts()[path]
    done = await road.run(("/bin/sh", "-c", _PUT, "put", path, _sha256(text)), text, _STEP_S)
    _expect_success(done, f"writing {path}")


async def _version(road: Road, spec: HostSpec) -> int:
    """The version that answers there, in range; so the file also runs (mode, noexec, sudoers)."""
    try:
        version = (await ask(road, "version", (), timeout_s=_STEP_S)).version
    except TransportError as exc:
        if exc.reason not in (Reason.HELPER_MISSING, Reason.SUDO_DENIED):
            raise
        raise TransportError(exc.reason, f"{exc.message}; {_by_hand(spec)}") from exc
    if not OLDEST_VERSION <= version <= host.VERSION:
        text = f"{host.HELPER_PATH} has version {version}, this daemon works with {OLDEST_VERSION} to {host.VERSION}"
        raise TransportError(Reason.HELPER_OUTDATED, f"{text}; {_by_hand(spec)}")
    return version


def _by_hand(spec: HostSpec) -> str:
    """What an administrator does on the machine, in one line."""
    inside = f" in container {spec.via.proxmox_container}" if spec.via is not None else ""
    steps = f"as root{inside} put there what `stoker helper print` gives, mode 0755"
    if not spec.uses_sudo or spec.ssh is None:
        return steps
    outer = f"/usr/sbin/pct exec {spec.via.proxmox_container} -- " if spec.via is not None else ""
    allowed = f"{outer}{host.HELPER_PATH} *"
    return f"{steps}, and allow `{shlex.quote(spec.ssh.user)} ALL=(root) NOPASSWD: {allowed}` in sudoers"


def _expect_success(done: Finished, what: str) -> None:
    if done.exit_status == 0:
        return
    told = done.stderr[-300:].decode("utf-8", "replace").strip()
    reason = Reason.TRUNCATED if done.exit_status == _DAMAGED else Reason.HELPER_MISSING
    raise TransportError(reason, f"{what} failed, {ended(done.exit_status, told)}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
