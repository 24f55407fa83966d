"""What an engine's process looks like: titles of the built-in engines, and what specs declare. Proves nothing alone.

Asked by `ownership`, `holders`, `clearing` and `protect`. A title is compared with the beginning of a command line, or
of what an interpreter runs in it, never with an interpreter's name; the kernel's own name of a process (`comm`) is a
title cut at 15 characters (case B05).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from daemon.domain.observation import Process
from daemon.domain.text import INTERPRETERS

COMM_LENGTH = 15
_LINE = 4096
_WORDS = 64  # a command line is as long as whoever started it likes
_ENGINES = (
    "sglang::", "VLLM::", "sgl_diffusion::", "smg::router", "sglang serve", "sglang.launch_server", "sglang.srt",
    "sglang_router", "vllm serve", "vllm.entrypoints", "vllm.v1", "vllm-rs",
)  # fmt: skip
_WRAPPERS = frozenset({"env", "sudo", "nohup", "setsid", "numactl", "timeout", "nice", "stdbuf", "exec"})
_WRAPPED_WORDS = 8  # of a wrapper's own options at most
_WITH_VALUE = frozenset({"-X", "-W", "-cp", "-classpath", "--class-path"})
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_CODE_BY_E = re.compile(r"(perl|ruby|node|php|lua)[0-9.]*")
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
    if process.comm.startswith(("sglang::", "VLLM::")):
        return True
    starts = tuple(" ".join(words)[:_LINE] for words in commands(process.argv))
    if any(_begins(start, title) for start in starts for title in _ENGINES):
        return True
    starts += _starts(line)
    return any(_titled(process, starts, title) for title in shapes.titles)


def commands(argv: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """What a command line runs: itself, and what an interpreter or a wrapper in front of it does; also without folders.

    What stands further behind, or in a piece of code, is an argument and tells nothing.
    """
    words = argv[:_WORDS] if len(argv) > 1 else tuple(" ".join(argv)[:_LINE].split(" ")[:_WORDS])
    found: list[tuple[str, ...]] = []
    while words:
        name = posixpath.basename(words[0])
        found += [words, (name, *words[1:])] if name != words[0] else [words]
        if not INTERPRETERS.fullmatch(name):
            break
        words = _wrapped(words[1:]) if name in _WRAPPERS else _interpreted(name, words[1:])
    return tuple(found)


def _interpreted(name: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """From the script or module on; nothing where the interpreter runs a piece of code."""
    module, code = "m" if _PYTHON.fullmatch(name) else "", "e" if _CODE_BY_E.fullmatch(name) else "c"
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return words[at:]
        if word in _WITH_VALUE:
            at += 1
        elif not word.startswith("--") and word != "-jar":
            flags, found, rest = word.partition(module or "\0")
            if code in flags:
                return ()
            if found:
                return (rest, *words[at + 1 :]) if rest else words[at + 1 :]
        at += 1
    return ()


def _wrapped(words: tuple[str, ...]) -> tuple[str, ...]:
    """From the first word on that is a program's: a wrapper's options and their values are none."""
    for at, word in enumerate(words[:_WRAPPED_WORDS]):
        name = posixpath.basename(word)
        if INTERPRETERS.fullmatch(name) or any(_begins(" ".join((name, *words[at + 1 : at + 2])), t) for t in _ENGINES):
            return words[at:]
    return ()


def _titled(process: Process, starts: tuple[str, ...], title: str) -> bool:
    if _begins(process.comm, title) or (len(title) > COMM_LENGTH and process.comm == title[:COMM_LENGTH]):
        return True
    return any(_begins(start, title) for start in starts)


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
