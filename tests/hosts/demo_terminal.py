"""A command on a terminal of a given size, its screens as text with their times, and a picture of one of them."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HOME = b"\x1b[H"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")
TWO_CORES = 2
# Without the fonts that rich would have every reader fetch.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")


@dataclass
class Terminal:
    """`raw` is every byte that came; `frames` are the whole pictures of a screen drawn anew, with their time."""

    process: subprocess.Popen[bytes]
    master: int
    size: tuple[int, int]
    began: float
    raw: bytes = b""
    frames: list[tuple[float, bytes]] = field(default_factory=list)
    _taken: int = 0

    def wait(self, seen: Callable[[str], bool], what: str, timeout_s: float) -> float:
        """Read until the newest picture satisfies; seconds since the start. Raises AssertionError with the picture."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if not self._read(0.2) and self.process.poll() is not None:
                break
            if self.frames and seen(plain(self.frames[-1][1])):
                return self.frames[-1][0]
        raise AssertionError(f"never {what}:\n{self.text()[-6000:]}")

    def key(self, key: bytes) -> None:
        """What a person types."""
        os.write(self.master, key)

    def end(self, timeout_s: float) -> int:
        """Read to the end; the exit status."""
        end = time.monotonic() + timeout_s
        while self._read(0.2) or self.process.poll() is None:
            assert time.monotonic() < end, f"did not end:\n{self.text()[-6000:]}"
        return self.process.wait()

    def text(self) -> str:
        """Everything that came, without what moves the cursor."""
        return plain(self.raw)

    def _read(self, wait_s: float) -> bool:
        if not select.select([self.master], [], [], wait_s)[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # EIO: nobody has the other end any more
            return False
        self.raw += piece
        *whole, rest = self.raw[self._taken :].split(HOME)
        at = time.monotonic() - self.began
        self.frames += [(at, frame) for frame in whole if frame.strip()]
        self._taken = len(self.raw) - len(rest)
        return bool(piece)


@contextmanager
def on_terminal(argv: list[str], columns: int, rows: int) -> Iterator[Terminal]:
    """The command on a terminal of its own, on two cores; killed at the end of the block."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def become() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:TWO_CORES])

    process = subprocess.Popen(
        argv,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=become,  # noqa: PLW1509
    )
    os.close(slave)
    try:
        yield Terminal(process, master, (columns, rows), time.monotonic())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(master)


def plain(raw: bytes) -> str:
    """Text without escapes."""
    return ESCAPES.sub("", raw.decode("utf-8", "replace"))


def picture(frame: bytes, size: tuple[int, int], title: str, path: Path) -> None:
    """The frame in its colours as SVG, and its text beside it."""
    console = Console(record=True, width=size[0], file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(frame.decode("utf-8", "replace").replace("\r", "").rstrip()), no_wrap=True, crop=True)
    text = "".join(f"{line.rstrip()}\n" for line in console.export_text(clear=False).splitlines())
    path.with_suffix(".txt").write_text(text)
    path.write_text(console.export_svg(title=title, code_format=FORMAT))
