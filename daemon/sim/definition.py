"""What systemd has loaded of one unit: its files put together, and what the settings mean. Used by `units`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from daemon.sim import words

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class Command:
    """One Exec line: what is executed, and its argv. `literal` leaves `$` alone, `forgiving` forgets failure."""

    path: str
    argv: tuple[str, ...]
    literal: bool = False
    forgiving: bool = False

    def expanded(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """argv with `$NAME` and `${NAME}` replaced, as systemd does before it executes."""
        if self.literal:
            return self.argv
        return tuple(
            _VARIABLE.sub(lambda found: environ.get(found[1] or found[2], ""), word.replace("$$", "\0")).replace(
                "\0", "$"
            )
            for word in self.argv
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A service. `bad` says that systemd refuses it (BadUnitSetting)."""

    fragment: str
    dropins: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    before: tuple[Command, ...] = ()
    environment: tuple[str, ...] = ()
    unset: frozenset[str] = frozenset()
    user: str = ""
    working_directory: str = ""
    restart: str = "no"
    restart_s: float = 0.1
    stop_timeout_s: float = 90.0
    kill_mode: str = "control-group"
    limit_burst: int = 5
    limit_interval_s: float = 10.0
    prevent: frozenset[int] = field(default_factory=frozenset)
    wanted_by: tuple[str, ...] = ()
    bad: bool = False


@lru_cache(maxsize=4096)  # the same few files are read at every look
def load(unit: str, fragment: str, texts: tuple[tuple[str, str], ...]) -> Definition:
    """The definition out of the fragment's and the drop-ins' (path, text), the fragment's first."""
    found: dict[str, list[str]] = {}
    for _, text in texts:
        for section, key, value in words.settings(text):
            if section in ("Unit", "Service", "Install"):
                found.setdefault(key, []).append(value)
    try:
        return _build(unit, fragment, tuple(path for path, _ in texts if path != fragment), found)
    except (ValueError, KeyError):
        return Definition(fragment, bad=True)


def _build(unit: str, fragment: str, dropins: tuple[str, ...], found: Mapping[str, list[str]]) -> Definition:
    def last(key: str, default: str) -> str:
        return found[key][-1] if found.get(key) else default

    def listed(key: str) -> list[str]:
        """Values since the last empty assignment, which empties the list."""
        values = found.get(key, [])
        start = max((i for i, value in enumerate(values) if not value), default=-1)
        return values[start + 1 :]

    commands = tuple(_command(unit, value) for value in listed("ExecStart"))
    environment = [words.specifiers(word, unit) for value in listed("Environment") for word in words.split(value)]
    kind = last("Type", "simple")
    return Definition(
        fragment=fragment,
        dropins=dropins,
        commands=commands,
        before=tuple(_command(unit, value) for value in listed("ExecStartPre")),
        environment=_unique(environment),
        unset=frozenset(word for value in listed("UnsetEnvironment") for word in value.split()),
        user=words.specifiers(last("User", ""), unit),
        working_directory=words.specifiers(last("WorkingDirectory", ""), unit),
        restart=last("Restart", "no"),
        restart_s=words.seconds(last("RestartSec", "100ms")),
        stop_timeout_s=words.seconds(last("TimeoutStopSec", last("TimeoutSec", "90"))),
        kill_mode=last("KillMode", "control-group"),
        limit_burst=int(last("StartLimitBurst", "5")),
        limit_interval_s=words.seconds(last("StartLimitIntervalSec", "10")),
        prevent=frozenset(int(word) for value in listed("RestartPreventExitStatus") for word in value.split()
                          if word.isdigit()),
        wanted_by=tuple(word for value in listed("WantedBy") for word in value.split()),
        bad=bool(fragment) and (not commands or (len(commands) > 1 and kind != "oneshot")),
    )  # fmt: skip


def _command(unit: str, value: str) -> Command:
    parts = [words.specifiers(word, unit) for word in words.split(value)]
    path = parts[0].lstrip("@-:+!")
    prefix = parts[0][: len(parts[0]) - len(path)]
    argv = parts[1:] if "@" in prefix else [path, *parts[1:]]
    return Command(path, tuple(argv), ":" in prefix, "-" in prefix)


def _unique(entries: Sequence[str]) -> tuple[str, ...]:
    """A name set again keeps its first place with its last value, as in systemd; what is no assignment is dropped."""
    kept: dict[str, str] = {}
    for entry in entries:
        name, equals, _ = entry.partition("=")
        if equals:
            kept[name] = entry
    return tuple(kept.values())
