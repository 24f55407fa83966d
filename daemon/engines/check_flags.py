"""Rules for flags: `args` against the engine's own parser, and fields whose flag a version does not have. For `check`.

Only an exactly known version refuses; for any other the nearest known one only warns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from daemon.engines import router, sglang, vllm
from daemon.engines.arguments import Option, Value, identity, spelled
from daemon.engines.catalogue import Flag, Flags
from daemon.engines.findings import Finding, Seat, refuse, warn
from daemon.engines.redact import HIDDEN, is_secret_name, redact

_DECLARED_ELSEWHERE = {
    "--model": "model.path",
    "--model-path": "model.path",
    "--model-tag": "model.path",
    "--served-model-name": "model.servedName",
    "--port": "port",
}


def flag_findings(seat: Seat) -> Iterator[Finding]:
    """Everything wrong with the flags of one role."""
    flags = seat.flags
    for name, value in seat.view.args.items():
        if is_secret_name(name) or redact(f"x {value}") != f"x {value}":
            hint = "argv is readable by everybody on the host"
            yield refuse(seat.path(f"args.{name}"), f"--{name} holds a secret ({HIDDEN})", hint)
            continue
        yield from _value_findings(seat, name, value)
        if flags is not None:
            yield from _known_findings(seat, flags, name, value)
    if flags is not None:
        yield from _rendered_findings(seat, flags)


def _value_findings(seat: Seat, name: str, value: Value) -> Iterator[Finding]:
    path = seat.path(f"args.{name}")
    if value is False:
        yield refuse(path, "false is no argument", "leave it out, or give the engine's own negative flag as true")
    elif isinstance(value, float) and not math.isfinite(value):
        yield refuse(path, f"{value} is no number for a command line")
    elif isinstance(value, tuple) and any(word.startswith("-") for word in value):
        yield refuse(path, "a value of a list begins with '-' and would be taken for a flag")


def _known_findings(seat: Seat, flags: Flags, name: str, value: Value) -> Iterator[Finding]:
    path, written = seat.path(f"args.{name}"), spelled(name)
    stem, dot, rest = written.partition(".")
    dashed = stem.replace("_", "-") + dot + rest
    if dashed != written:
        yield refuse(path, f"{written} is spelled with underscores", f"write {dashed[2:]}")
        return
    declared = _DECLARED_ELSEWHERE.get(identity(flags, written)) or _DECLARED_ELSEWHERE.get(written)
    if declared is not None:
        yield refuse(path, f"{written} is declared by spec.{declared}", f"set {seat.path(declared)} and leave this out")
        return
    flag = flags.find(written)
    if flag is None:
        yield _unsure(flags, path, f"{flags.engine} {flags.version} has no flag {written}", _suggestion(flags, written))
        return
    yield from _arity_findings(flags, flag, path, value, dotted="." in written)


def _suggestion(flags: Flags, written: str) -> str:
    longer = [one for one in flags.by_spelling if one.startswith(written)]
    if longer:
        return f"abbreviations change their meaning between versions; did you mean {min(longer, key=len)[2:]}?"
    closest = flags.closest(written)
    return f"did you mean {closest.lstrip('-')}?" if closest is not None else ""


def _arity_findings(flags: Flags, flag: Flag, path: str, value: Value, *, dotted: bool) -> Iterator[Finding]:
    if dotted:
        return
    if flag.arity == "0" and value is not True and value is not False:
        yield _unsure(flags, path, f"{flag.name} takes no value", "write true")
    if flag.arity in ("1", "+") and (value is True or value == ()):
        yield _unsure(flags, path, f"{flag.name} needs a value")
    if flag.arity in ("1", "?") and isinstance(value, tuple) and len(value) > 1:
        yield _unsure(flags, path, f"{flag.name} takes one value")
    if flag.choices is not None and not isinstance(value, bool):
        wrong = [one for one in (value if isinstance(value, tuple) else (str(value),)) if one not in flag.choices]
        if wrong:  # plugins may add choices
            yield warn(path, f"{flags.engine} {flags.version} does not list {wrong[0]!r}", ", ".join(flag.choices))


def _rendered_findings(seat: Seat, flags: Flags) -> Iterator[Finding]:
    for one in _options(seat, flags):
        if flags.find(one.spelling) is None and seat.given(one.spelling) is None:
            path = seat.path(one.source) if one.source else f"spec.roles.{seat.role}"
            message = f"needs {one.spelling}, which {flags.engine} {flags.version} does not have"
            yield _unsure(flags, path, message)


def _options(seat: Seat, flags: Flags) -> Iterator[Option]:
    if seat.role == "router":
        return router.options(flags, seat.view, ())
    if seat.view.engine.name == "vllm":
        return vllm.options(flags, seat.view)
    return sglang.options(flags, seat.view, seat.role, seat.spec)


def _unsure(flags: Flags, path: str, message: str, hint: str = "") -> Finding:
    """Refused only where the version is exactly known."""
    return refuse(path, message, hint) if flags.exact else warn(path, message, hint)
