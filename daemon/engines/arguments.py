"""Flags of an argv: what Stoker renders from a spec's fields, and the spec's own `args`, which have the last word.

Called by the engines' renderers and `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from daemon.engines.catalogue import Flags

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One flag rendered from the spec field `source` (dotted camelCase): `words` are its values, none for a switch."""

    spelling: str
    words: tuple[str, ...]
    source: str


def option(flags: Flags, source: str, spellings: str | tuple[str, ...], *words: object) -> Option:
    """A flag in the first of its spellings that the version knows, so that one spec renders alike over versions."""
    names = (spellings,) if isinstance(spellings, str) else spellings
    return Option(flags.first_valid(*names), tuple(text_of(word) for word in words), source)


def text_of(value: object) -> str:
    """A value as an argument. Whole floats lose their ".0": integer flags refuse it, float flags do not need it."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def spelled(name: str) -> str:
    """The flag that a key of `args` names, as written."""
    return f"--{name}"


def identity(flags: Flags, spelling: str) -> str:
    """One name for all spellings of a flag: its first in this version; `_` counts as `-`."""
    dashed = spelling.replace("_", "-")
    flag = flags.find(spelling) or flags.find(dashed)
    return flag.name if flag is not None else dashed


def merged(flags: Flags, rendered: Iterable[Option], args: Mapping[str, Value]) -> tuple[str, ...]:
    """The rendered flags without those that `args` give too (in any spelling), then `args` in their own order."""
    given = {identity(flags, spelled(name)) for name in args}
    words: list[str] = []
    for one in rendered:
        if identity(flags, one.spelling) not in given:
            words += words_of(one.spelling, one.words)
    for name, value in args.items():
        words += given_words(spelled(name), value)
    return tuple(words)


def given_words(spelling: str, value: Value) -> list[str]:
    """Words of one entry of `args`: True is a bare flag, False none (admission refuses it), a list several values."""
    if value is True:
        return [spelling]
    if value is False:
        return []
    if isinstance(value, tuple):
        return [spelling, *value]
    return words_of(spelling, (text_of(value),))


def words_of(spelling: str, values: tuple[str, ...]) -> list[str]:
    """A flag with its values; one value that begins with "-" is joined by "=", or argparse takes it for a flag."""
    if len(values) == 1 and values[0].startswith("-"):
        return [f"{spelling}={values[0]}"]
    return [spelling, *values]
