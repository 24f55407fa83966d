"""The text of a unit file, of a drop-in and of the gate's manifest; and a unit file's text read back.

Called by the planner: text to write, and drift of the file. The template is fixed: a change of it alone is no drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from daemon.domain.spec import ServingSpec
from daemon.domain.text import duration_s
from daemon.engines import router
from daemon.engines.launch import RESERVED_ENV, Launch
from daemon.engines.quoting import SEPARATOR, WHITESPACE, Unreadable, expand, plain, quote, quote_path, split

_AFTER = "network-online.target nvidia-persistenced.service nvidia-fabricmanager.service"
_GATE = "+/bin/sh -c '[ ! -x /var/lib/stoker/gate ] || exec /var/lib/stoker/gate %n'"
_LIMITS = ("LimitNOFILE=1048576", "LimitMEMLOCK=infinity", "TasksMax=infinity", "LogRateLimitIntervalSec=0")


@dataclass(frozen=True, slots=True)
class Marks:
    """Whose process it is: uids of the store and the spec, and the launch hash, as STOKER_ variables."""

    store: str
    spec: str
    launch_hash: str


@dataclass(frozen=True, slots=True)
class ParsedUnit:
    """A unit file's [Service] as systemd would load it. None: not set, not readable, or only the host can know.

    `env` holds everything set, STOKER_ marks included, each name once, in the file's order.
    """

    argv: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...] | None
    user: str | None
    working_directory: str | None
    unset: frozenset[str] = frozenset()


def with_unset(text: str, names: Iterable[str]) -> str:
    """The text with these variables, inherited from systemd's own environment, kept from the process."""
    line = " ".join(sorted(names))
    return text.replace("[Service]\n", f"[Service]\nUnsetEnvironment={line}\n", 1) if line else text


def setting_keys(text: str) -> frozenset[str]:
    """The settings that a unit file or a drop-in makes, as Section.Key; none for comments alone."""
    return frozenset(f"{section}.{key}" for section, key, _ in _sections(text))


def unit_text(launch: Launch, marks: Marks, view: ServingSpec, unit_name: str) -> str:
    """The whole unit file of an instance that Stoker named itself."""
    del unit_name  # the text names itself by %n, so that a renamed file is still right
    lines = [*_unit_section(launch, view), "[Service]", "Type=exec"]
    if launch.user is not None:
        lines.append(f"User={plain(launch.user)}")
    if launch.working_directory is not None:
        lines.append(f"WorkingDirectory={plain(launch.working_directory)}")
    lines += [*_environment(launch, marks), *_service(launch, view), "[Install]", "WantedBy=multi-user.target"]
    return "\n".join(lines) + "\n"


def dropin_text(launch: Launch, marks: Marks, view: ServingSpec, unit_name: str) -> str:
    """The drop-in over a unit that somebody else wrote: its launch is replaced, its own ExecStartPre= still run first.

    List settings are emptied before they are set (a second ExecStart= makes the whole unit bad), user and folder too,
    so that what is loaded is what was declared.
    """
    del unit_name
    lines = [*_unit_section(launch, view), "[Service]", "Type=exec"]
    lines.append(f"User={plain(launch.user or '')}")
    lines.append(f"WorkingDirectory={plain(launch.working_directory or '')}")
    lines += ["Environment=", *_environment(launch, marks), *_service(launch, view, reset=True)]
    return "\n".join(lines) + "\n"


def gate_manifest(gpus: Sequence[tuple[int, str]], ports: Sequence[int]) -> str:
    """What the gate waits for: cards by index and UUID, then ports, one a line."""
    lines = [f"gpu {index} {uuid}" for index, uuid in gpus] + [f"port {port}" for port in ports]
    return "".join(f"{line}\n" for line in lines)


def _unit_section(launch: Launch, view: ServingSpec) -> Iterator[str]:
    yield "[Unit]"
    yield f"After={_AFTER}"
    yield "Wants=network-online.target"
    mounts = " ".join(quote_path(path) for path in _weights(view))
    if mounts and not router.is_router(launch.argv):
        yield f"RequiresMountsFor={mounts}"
    yield f"StartLimitIntervalSec={view.restart.start_limit_interval}"
    yield f"StartLimitBurst={view.restart.start_limit_burst}"


def _weights(view: ServingSpec) -> list[str]:
    """Folders of weights on the host; a hub id is none, and systemd ignores a path with `..` in it."""
    named = [view.model.path if view.model else None, view.speculative.draft_model if view.speculative else None]
    found = [path for path in named if path and path.startswith("/") and ".." not in path.split("/")]
    return list(dict.fromkeys(found))


def _environment(launch: Launch, marks: Marks) -> Iterator[str]:
    env = dict(launch.env)
    own = {"STOKER_STORE": marks.store, "STOKER_SPEC": marks.spec, "STOKER_LAUNCH": marks.launch_hash}
    first = {**own, "SPT_NOENV": env.get("SPT_NOENV", "1")}
    cuda = {name: env[name] for name in RESERVED_ENV if name in env and name not in first}
    rest = [{name: value} for name, value in launch.env if name not in RESERVED_ENV]
    for group in (first, cuda, *rest):
        if group:
            yield "Environment=" + " ".join(quote(f"{name}={value}") for name, value in group.items())


def _service(launch: Launch, view: ServingSpec, *, reset: bool = False) -> Iterator[str]:
    yield f"ExecStartPre={_GATE}"
    if reset:
        yield "ExecStart="
    yield "ExecStart=" + " ".join(quote(word) for word in _exec_words(launch.argv))
    yield "TimeoutStartSec=infinity"
    yield "KillMode=mixed"
    yield f"TimeoutStopSec={_stop_timeout(launch, view)}"
    yield "Restart=always"
    yield f"RestartSec={view.restart.delay}"
    yield "RestartPreventExitStatus=2"
    yield from _LIMITS


def _exec_words(argv: tuple[str, ...]) -> Iterator[str]:
    """The ":" keeps systemd from expanding "$" in the arguments."""
    yield f":{argv[0]}"
    yield from argv[1:]


def _stop_timeout(launch: Launch, view: ServingSpec) -> str:
    """As declared; a router gets longer than it drains by itself."""
    if router.is_router(launch.argv) and duration_s(view.stop.timeout) <= router.DRAIN_S:
        return f"{router.DRAIN_S + 10}s"
    return view.stop.timeout


@lru_cache(maxsize=256)  # the same few files are read at every look
def parse_unit(text: str) -> ParsedUnit:
    """[Service] of one file read as systemd reads it: comments, continued lines, resets, quotes, escapes, "%%"."""
    settings = list(_settings(text))
    return ParsedUnit(
        argv=_argv([value for key, value in settings if key == "ExecStart"]),
        env=_env([value for key, value in settings if key == "Environment"]),
        user=_scalar([value for key, value in settings if key == "User"]),
        working_directory=_scalar([value for key, value in settings if key == "WorkingDirectory"]),
        unset=frozenset(word for key, value in settings if key == "UnsetEnvironment" for word in value.split()),
    )


def _settings(text: str) -> Iterator[tuple[str, str]]:
    return ((key, value) for section, key, value in _sections(text) if section == "Service")


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    section = ""
    for line in _logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, value = line.split("=", 1)
            yield section, key.strip(WHITESPACE), value.strip(WHITESPACE)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines joined over a trailing backslash (which becomes a space); comments count as absent, even in between."""
    pending = ""
    for raw in text.replace("\r", "\n").split("\n"):
        if raw.lstrip(WHITESPACE).startswith(("#", ";")):
            continue
        line = pending + raw
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1] + " "
            continue
        pending = ""
        if line.strip(WHITESPACE):
            yield line.strip(WHITESPACE)
    if pending.strip(WHITESPACE):
        yield pending.strip(WHITESPACE)


def _argv(values: Sequence[str]) -> tuple[str, ...] | None:
    lines = _since_reset(values)
    if len(lines) != 1:
        return None
    try:
        words = split(lines[0], relaxed=True)
        return _command(words)
    except Unreadable:
        return None


def _command(words: list[str]) -> tuple[str, ...] | None:
    """argv of one Exec line: prefixes off its first word, "$" as systemd would leave it."""
    if not words or SEPARATOR in words:
        return None
    path = words[0].lstrip("@-:+!")
    prefix = words[0][: len(words[0]) - len(path)]
    argv = [expand(word) for word in (words[1:] if "@" in prefix else [path, *words[1:]])]
    if ":" in prefix:
        return tuple(argv)
    literal = [word.replace("$$", "\0") for word in argv]
    if any("$" in word for word in literal):
        return None
    return tuple(word.replace("\0", "$") for word in literal)


def _env(values: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    found: dict[str, str] = {}
    try:
        for value in _since_reset(values):
            for word in split(value, relaxed=False):
                name, equals, content = expand(word.replace(SEPARATOR, ";")).partition("=")
                if equals:
                    found[name] = content
    except Unreadable:
        return None
    return tuple(found.items())


def _since_reset(values: Sequence[str]) -> list[str]:
    """An empty assignment empties the list before it."""
    at = max((i for i, value in enumerate(values) if not value), default=-1)
    return list(values[at + 1 :])


def _scalar(values: Sequence[str]) -> str | None:
    try:
        return expand(values[-1]) if values else None
    except Unreadable:
        return None
