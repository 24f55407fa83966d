"""Flags of each engine's parser by version, read once from `flags.json` beside this file.

Called by the engines' renderers and `check`. The table comes from the real parsers; prefixes that argparse would
complete are not in it, on purpose: what they mean changes between versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

EngineName = Literal["sglang", "vllm", "sglang-router"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `arity`: "0" takes no value, "1" one, "?" "*" "+" as argparse. `choices` None: not listed."""

    spellings: tuple[str, ...]
    arity: str
    choices: tuple[str, ...] | None

    @property
    def name(self) -> str:
        """Its first spelling in this version."""
        return self.spellings[0]


@dataclass(frozen=True, slots=True)
class Flags:
    """All flags of one version. `exact` is False when the asked version is not known and this is the nearest before."""

    engine: EngineName
    version: str
    exact: bool
    by_spelling: Mapping[str, Flag] = field(repr=False)

    def find(self, spelling: str) -> Flag | None:
        """The flag of an exact spelling (`--tp-size`, `-tp`); for vLLM the part before a dot names a JSON flag."""
        found = self.by_spelling.get(spelling)
        if found is None and self.engine == "vllm" and "." in spelling:
            found = self.by_spelling.get(spelling.split(".", 1)[0])
        return found

    def first_valid(self, *spellings: str) -> str:
        """The first of the spellings that this version has, the first of all when it has none."""
        return next((one for one in spellings if one in self.by_spelling), spellings[0])

    def closest(self, spelling: str) -> str | None:
        """The known spelling that was probably meant."""
        return next(iter(get_close_matches(spelling, self.by_spelling, n=1, cutoff=0.7)), None)


def flags_of(engine: EngineName, version: str | None) -> Flags:
    """The flag set of a version; None is the newest known, an unknown one the nearest known before it."""
    versions = _table()[engine]
    if version is None:
        return _flags(engine, list(versions)[-1], exact=False)
    public = version.split("+", 1)[0]
    if public in versions:
        return _flags(engine, public, exact=True)
    before = [known for known in versions if _order(known) <= _order(public)]
    return _flags(engine, before[-1] if before else next(iter(versions)), exact=False)


def _order(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


@cache
def _flags(engine: EngineName, version: str, *, exact: bool) -> Flags:
    flags = _table()[engine][version]
    return Flags(engine, version, exact, {spelling: flag for flag in flags for spelling in flag.spellings})


@cache
def _table() -> dict[str, dict[str, list[Flag]]]:
    """Engine → version → flags, versions in the file's order, oldest first."""
    raw = json.loads(Path(__file__).with_name("flags.json").read_text(encoding="utf-8"))
    table: dict[str, dict[str, list[Flag]]] = {}
    for engine, data in raw.items():
        versions: dict[str, list[Flag]] = {version: [] for version in data["versions"]}
        for spellings, arity, choices, present in data["flags"]:
            flag = Flag(tuple(spellings), arity, None if choices is None else tuple(choices))
            for at in present:
                versions[data["versions"][at]].append(flag)
        table[engine] = versions
    return table
