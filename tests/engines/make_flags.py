"""Makes `daemon/engines/flags.json` from a full dump of the engines' parsers: `python make_flags.py DUMP > flags.json`.

The dump holds, per engine and version, every argparse action. Kept here: spellings, arity, choices, and in which of
the versions a definition holds. One flag a line, so that a new version is a readable difference.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ENGINES = ("sglang", "vllm", "sglang-router")
BARE_ACTIONS = {
    "store_true",
    "boolean_optional",
    "EnableDisableAction",
    "DeprecatedStoreTrueAction",
    "DeprecatedStoreConstAction",
}


def arity(flag: dict[str, Any]) -> str:
    """ "0" takes no value, "1" one, "?" "*" "+" as argparse has it."""
    if flag["action"] in BARE_ACTIONS:
        return "0"
    return "1" if flag["nargs"] in (None, 1) else str(flag["nargs"])


def rows(versions: dict[str, Any]) -> list[list[Any]]:
    """[spellings, arity, choices, version numbers] of each different definition, sorted by name."""
    found: dict[str, list[Any]] = {}
    for at, name in enumerate(versions):
        for first, flag in versions[name]["flags"].items():
            if flag.get("positional"):
                continue
            spellings = [first, *flag["aliases"], *flag.get("hidden_aliases", [])]
            choices = None if flag["choices"] is None else [str(choice) for choice in flag["choices"]]
            row = found.setdefault(json.dumps([spellings, arity(flag), choices]), [spellings, arity(flag), choices, []])
            row[3].append(at)
    return sorted(found.values(), key=lambda row: (row[0][0], row[3]))


def main() -> None:
    """Reads the dump named by the first argument, writes the compact table to standard output."""
    with open(sys.argv[1], encoding="utf-8") as file:
        dump = json.load(file)
    parts = []
    for engine in ENGINES:
        versions = dump[engine]["versions"]
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows(versions))
        parts.append(f'{json.dumps(engine)}: {{"versions": {json.dumps(list(versions))}, "flags": [\n{lines}]}}')
    sys.stdout.write("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    main()
