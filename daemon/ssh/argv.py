"""How a command is spelled on its way to a host, and what the layers in between say when they refuse it.

Called by `road` and `pool`. Pure: text in, text out; it runs nothing and knows no connection.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from daemon.domain.host import HostSpec
from daemon.domain.status import Reason

HELPER_PATH = "/var/lib/stoker/stoker-host"

# sshd's PATH for a user who is not root lacks /usr/sbin, where `pct` lives; C texts are the ones `refusal` knows.
_PRELUDE = 'export LC_ALL=C PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH"; exec '

_SUDO_SAYS = re.compile(
    rb"^sudo(-rs)?: .*(password|terminal|tty\b|authentication|askpass|sudoers|setuid|new privileges|"
    rb"account validation|not found in PATH|sorry)"
    rb"|is not in the sudoers file|is not allowed to (execute|run)|may not run sudo|exec: sudo: not found",
    re.MULTILINE | re.IGNORECASE,
)
_SHELL_SAYS = re.compile(
    rb"Unmatched ['\"`]|^Usage: csh |^fish: |: Command not found\.|Illegal variable name\.|Badly placed \(\)"
    rb"|This account is currently not available|^if: Expression Syntax\.",
    re.MULTILINE,
)
# pct's own words (PVE/CLI/pct.pm, PVE/Cluster), and those of lxc-attach (lxc 6, attach.c) while a container goes down.
_CONTAINER_SAYS = re.compile(
    rb"(container|CT) '?\d+'? (is )?not running|Configuration file '[^']*' does not exist"
    rb"|(CT|container) '?\d+'? does not exist|^lxc-attach: .*Failed to get init pid",
    re.MULTILINE,
)
_PCT_MISSING = re.compile(rb"pct: (command )?not found")
_HELPER_DONE = re.compile(rb"^@[0-9a-f]{32} end exit=\d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself: its exit status (0 to 255) and everything it wrote."""

    exit_status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Wrap:
    """What stands before each command: `sudo` of the machine SSH reaches, then the container entered from it."""

    sudo: bool = False
    container: int | None = None


def wrap_of(spec: HostSpec) -> Wrap:
    return Wrap(sudo=spec.uses_sudo, container=spec.via.proxmox_container if spec.via else None)


def through_container(argv: Sequence[str], container: int | None) -> tuple[str, ...]:
    """The command inside system container `container` of a Proxmox machine, None: on the machine itself."""
    return tuple(argv) if container is None else ("pct", "exec", str(container), "--", *argv)


def through_sudo(argv: Sequence[str], sudo: bool) -> tuple[str, ...]:
    """Always `-n`: newer versions of sudo otherwise wait for a password that nobody types."""
    return ("sudo", "-n", "--", *argv) if sudo else tuple(argv)


def wrapped(argv: Sequence[str], wrap: Wrap) -> tuple[str, ...]:
    """The whole argument list: sudo stands outside of `pct`, which only root of the outer machine may call."""
    return through_sudo(through_container(argv, wrap.container), wrap.sudo)


def shell_text(argv: Sequence[str]) -> str:
    """What `/bin/sh -c` gets: the command replaces the shell, so its exit status is the one that arrives."""
    return _PRELUDE + shlex.join(argv)


def command_line(argv: Sequence[str]) -> str:
    """What sshd hands to the user's login shell: `/bin/sh -c` and one quoted argument, nothing outside of it."""
    return "/bin/sh -c " + login_quote(shell_text(argv))


def login_quote(text: str) -> str:
    r"""One word for sh, csh and fish alike, as long as it holds no line break, which csh does not take.

    Inside single quotes fish reads `\\` and `\'`, and csh reads `!`: those three characters stand outside of them.
    """
    parts = re.split(r"([\\'!])", text)
    return "".join("\\" + part if part in ("\\", "'", "!") else f"'{part}'" if part else "" for part in parts) or "''"


def refusal(done: Finished, wrap: Wrap) -> tuple[Reason, str] | None:
    """Why a layer before the command refused it, so that it was never started; None when nothing says so."""
    if done.exit_status == 0 or _HELPER_DONE.search(done.stdout):
        return None
    told = _tail(done.stderr or done.stdout)
    if wrap.sudo and done.exit_status in (1, 127) and _SUDO_SAYS.search(done.stderr):
        return Reason.SUDO_DENIED, f"sudo refused: {told}; allow it without a password in sudoers"
    if wrap.container is not None and _PCT_MISSING.search(done.stderr):
        return Reason.TOOL_MISSING, f"no pct on the machine that SSH reaches: {told}; is it a Proxmox VE node?"
    if wrap.container is not None and _CONTAINER_SAYS.search(done.stderr):
        return (
            Reason.CONTAINER_UNREACHABLE,
            f"container {wrap.container} cannot be entered: {told}; start it, or correct via",
        )
    if _SHELL_SAYS.search(done.stderr + b"\n" + done.stdout):
        return Reason.UNSUPPORTED_LOGIN_SHELL, f"the login shell answered: {told}; give the user a Bourne shell"
    return None


def helper_refusal(done: Finished) -> tuple[Reason, str] | None:
    """Why `stoker-host` itself was not run, None when it was."""
    if _HELPER_DONE.search(done.stdout):
        return None
    told = _tail(done.stderr)
    if done.exit_status == 127 or (done.exit_status == 1 and f"sudo: {HELPER_PATH}: command not found" in told):
        return Reason.HELPER_MISSING, f"{HELPER_PATH} is not there: {told}"
    if done.exit_status == 126 or "Permission denied" in told:
        return Reason.HELPER_MISSING, f"{HELPER_PATH} cannot be run (mode, or a noexec file system): {told}"
    return None


def _tail(data: bytes) -> str:
    return data[-400:].decode("utf-8", "replace").strip().replace("\n", " / ")
