"""Types for text and numbers that come from people: bounded, without control characters, strict.

Called by `spec` and `host`. Everything outside is camelCase, inside snake_case; unknown keys are refused.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_DURATION = re.compile(r"^(\d{1,6})(ms|s|m|h|d)$")
# Programs that run other programs: their names say nothing of what runs (case B14).
INTERPRETERS = re.compile(
    r"-?(python|pypy|perl|ruby|node|java|php|lua|sh|bash|dash|ash|zsh|ksh|fish|tclsh|env|sudo|nohup|setsid|numactl"
    r"|timeout|nice|stdbuf|exec)[0-9.]*"
)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Model(BaseModel):
    """Base of everything declared: strict, frozen, camelCase outside, unknown keys refused."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, validate_default=True
    )


def printable(value: str) -> str:
    """The value itself, or ValueError when it holds a control character or a lone surrogate."""
    for char in value:
        if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) <= 0xDFFF or char in "\u2028\u2029":
            raise ValueError(f"control character {char!r} is not allowed")
    return value


def duration_s(value: str) -> float:
    """Seconds of a duration such as `500ms`, `60s`, `10m`, `1h`, `2d`; ValueError on anything else."""
    match = _DURATION.match(value)
    if match is None:
        raise ValueError("a duration is a whole number and a unit: 500ms, 60s, 10m, 1h, 2d")
    return int(match[1]) * _UNIT_S[match[2]]


def _duration(value: str) -> str:
    duration_s(value)
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "/../" in f"{value}/" or "//" in value:
        raise ValueError("must be an absolute path without '..' or '//'")
    return value


def _title(value: str) -> str:
    """Refuses what would name every program of an interpreter."""
    words = value.split(" ")
    if value != value.strip() or "" in words:
        raise ValueError("a title is words with one space between them")
    said = [word for word in words[1:] if not word.startswith("-")]
    if INTERPRETERS.fullmatch(words[0].rpartition("/")[2]) and not said:
        raise ValueError(f"{value!r} would name everything that {words[0]} runs; give the script or module as well")
    return value


Text = Annotated[str, Field(max_length=4096), AfterValidator(printable)]
ShortText = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(printable)]
ObjectName = Annotated[str, Field(max_length=40, pattern=NAME_PATTERN)]
AbsPath = Annotated[str, Field(max_length=1024), AfterValidator(printable), AfterValidator(_absolute)]
Duration = Annotated[str, Field(max_length=16), AfterValidator(_duration)]
Port = Annotated[int, Field(ge=1, le=65535)]
UserName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
UnitName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]*\.service$")]
EnvName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Title = Annotated[str, Field(min_length=4, max_length=128), AfterValidator(printable), AfterValidator(_title)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
