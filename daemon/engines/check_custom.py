"""Rules for a custom engine's command: what it may not start. For `check`.

A container client leaves its work in another cgroup under another parent: ownership could not be judged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from posixpath import basename, normpath

from daemon.engines.findings import Finding, Seat, refuse
from daemon.engines.redact import is_secret_name, redact

_CLIENTS = frozenset(
    {"docker", "podman", "nerdctl", "docker-compose", "podman-compose", "ctr", "crictl", "apptainer", "singularity"}
    | {
        "lxc",
        "lxc-start",
        "lxc-attach",
        "pct",
        "incus",
        "kubectl",
        "k3s",
        "systemd-nspawn",
        "systemd-run",
        "machinectl",
    }
)
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
# words before a command, with the options of theirs that take a word of their own
_WRAPPERS = {
    "env": {"-u", "--unset", "-C", "--chdir"},
    "sudo": {"-u", "-g", "-h", "-p", "-C", "-D", "-r", "-t", "-U", "--user", "--group"},
    "doas": {"-u", "-C"},
    "nice": {"-n", "--adjustment"},
    "ionice": {"-c", "-n", "--class", "--classdata"},
    "timeout": {"-k", "-s", "--kill-after", "--signal"},
    "stdbuf": {"-i", "-o", "-e"},
    "numactl": {"-N", "-m", "-C", "-i", "--cpunodebind", "--membind", "--physcpubind", "--interleave"},
    "taskset": {"-c", "-p"},
    "chrt": {"-T", "-P", "-D"},
    "setsid": set(), "nohup": set(), "exec": set(), "command": set(), "time": set(), "tini": set(),
    "dumb-init": set(), "unshare": set(), "setpriv": set(), "runuser": {"-u", "-g"}, "catchsegv": set(),
}  # fmt: skip
_ONE_MORE = frozenset({"timeout", "taskset", "chrt"})  # these take one word of their own before the command
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_MAX_DEPTH = 8


def custom_findings(seat: Seat) -> Iterator[Finding]:
    """Everything wrong with the command of a custom engine."""
    command = seat.view.engine.command
    if command is None:
        return
    client = container_client(command)
    if client is not None:
        hint = "run the engine itself; what a container client starts cannot be judged"
        yield refuse("spec.engine.command", f"starts the container client {client}", hint)
    for at, word in enumerate(command):
        stem, _, value = word.partition("=")
        named = word.startswith("--") and is_secret_name(stem.lstrip("-")) and (value or at + 1 < len(command))
        if named or redact(word) != word:
            yield refuse(f"spec.engine.command[{at}]", "holds a secret", "argv is readable by everybody on the host")


def container_client(argv: Sequence[str], depth: int = 0) -> str | None:
    """The container client that an argv starts, also behind env, sudo, a shell's -c and the like; None for none."""
    words = list(argv)
    while words and depth < _MAX_DEPTH:
        name = basename(normpath(words[0]))
        if name in _CLIENTS:
            return name
        if name in _SHELLS:
            return _in_shell(words[1:], depth + 1)
        if _ASSIGNMENT.match(words[0]):
            words = words[1:]
        elif name in _WRAPPERS:
            words = _behind(name, words[1:])
            depth += 1
        else:
            return None
    return None


def _behind(name: str, words: list[str]) -> list[str]:
    """The words after a wrapper's own options."""
    while words and words[0].startswith("-"):
        if name == "env" and words[0] in ("-S", "--split-string") and len(words) > 1:
            return [*_split(words[1]), *words[2:]]
        if words[0] == "--":
            words = words[1:]
            break
        words = words[2 if words[0] in _WRAPPERS[name] else 1 :]
    return words[1:] if name in _ONE_MORE else words


def _in_shell(words: list[str], depth: int) -> str | None:
    """The first container client among the commands of a shell's -c text; a script file is not read."""
    if words and basename(words[0]) in _SHELLS:  # busybox sh
        words = words[1:]
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word)), None)
    if at is None or at + 1 >= len(words):
        return None
    for command in _commands(words[at + 1]):
        found = container_client(command, depth)
        if found is not None:
            return found
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell text, roughly: split where the shell would begin a new one."""
    current: list[str] = []
    for word in _split(text):
        if re.fullmatch(r"[;&|()]+", word) or word in ("then", "do", "else", "if", "while", "until", "{", "}", "!"):
            yield current
            current = []
        else:
            current.append(word.lstrip("`$"))
    yield current


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return text.split()
