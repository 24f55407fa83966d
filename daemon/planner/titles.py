"""What an engine's process looks like: titles of the built-in engines, and what specs declare. Proves nothing alone.

Asked by `ownership`, `holders` and `clearing`. A title is compared with the beginning of a command line, never with an
interpreter's name; the kernel's own name of a process (`comm`) is a title cut at 15 characters (case B05).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from daemon.domain.observation import Process
from daemon.domain.text import INTERPRETERS

COMM_LENGTH = 15
_LINE = 4096
_ENGINE = re.compile(
    r"(^|[ /])(sglang::|VLLM::|sgl_diffusion::|smg::router|sglang serve|sglang\.launch_server|sglang\.srt|sglang_router"
    r"|vllm serve|vllm\.entrypoints|vllm\.v1|vllm-rs )"
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "ash"})


@dataclass(frozen=True, slots=True)
class Shapes:
    """What counts as a declared engine's process beside the built-in ones: titles, and whole command lines."""

    titles: tuple[str, ...] = ()
    commands: frozenset[tuple[str, ...]] = frozenset()


BUILT_IN = Shapes()


def is_engine(process: Process, shapes: Shapes = BUILT_IN) -> bool:
    """Whether its command line or title is an engine's."""
    if process.argv and process.argv in shapes.commands:
        return True
    line = " ".join(process.argv)[:_LINE]
    if _ENGINE.search(line) or process.comm.startswith(("sglang::", "VLLM::")):
        return True
    return any(_titled(process, line, title) for title in shapes.titles)


def _titled(process: Process, line: str, title: str) -> bool:
    if _begins(process.comm, title) or (len(title) > COMM_LENGTH and process.comm == title[:COMM_LENGTH]):
        return True
    return any(_begins(start, title) for start in _starts(line))


def _starts(line: str) -> tuple[str, ...]:
    """The line with its path and without, and the same of the script that an interpreter runs."""
    word, _, rest = line.partition(" ")
    plain = (line, posixpath.basename(word) + line[len(word) :])
    if not INTERPRETERS.fullmatch(posixpath.basename(word)):
        return plain
    script = rest.partition(" ")[0]
    return (*plain, rest, posixpath.basename(script) + rest[len(script) :])


def _begins(text: str, title: str) -> bool:
    """`text` begins with the title, and a word of it does not go on: `trt` is not the title of `trtexec`."""
    if not text.startswith(title):
        return False
    after = text[len(title) : len(title) + 1]
    return not (after.isalnum() or after == "_") or not (title[-1].isalnum() or title[-1] == "_")


def is_shell(process: Process) -> bool:
    """A shell, whether of a terminal or of a script."""
    return bool(process.argv) and posixpath.basename(process.argv[0].lstrip("-")) in _SHELLS


def is_interactive_shell(process: Process) -> bool:
    """A shell that runs neither a script nor a command line: a person sits, or sat, in front of it."""
    if not is_shell(process):
        return False
    words = list(process.argv[1:])
    for option in ("--rcfile", "--init-file"):  # as editors' terminals start it
        if option in words[:-1]:
            del words[words.index(option) : words.index(option) + 2]
    return all(word.startswith("-") and ("c" not in word or word.startswith("--")) for word in words)
