"""How the command line writes: safe text, ages, tables that fit. What comes from hosts never moves a terminal.

In a pipe nothing is coloured, cut or wrapped. Called by the commands; asks nobody.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from daemon.domain.errors import Problem
from daemon.settings import wall_clock

PIPE_WIDTH = 100_000
_LEAST_PROSE = 28  # narrower columns of prose are put below their row
_GAP = "  "
_COLOURS = {
    "True": "green",
    "ok": "green",
    "OK": "green",
    "False": "red",
    "Warning": "yellow",
    "no": "red",
    "Unknown": "yellow",
    "?": "yellow",
}


def safe(value: object) -> str:
    """Text with everything that could move, hide or reorder on a terminal shown as an escape."""
    return "".join(_shown(char) for char in str(value))


def _shown(char: str) -> str:
    if char.isascii():
        return char if " " <= char <= "~" else f"\\x{ord(char):02x}"
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\\u{ord(char):04x}"
    return char


def age(stamp: str | None) -> str:
    """How long ago an ISO time was: `5s`, `3m12s`, `2h05m`, `3d04h`; `-` for none."""
    if not stamp:
        return "-"
    try:
        seconds = int((wall_clock() - datetime.fromisoformat(stamp)).total_seconds())
    except (ValueError, TypeError):
        return safe(stamp)
    return span(seconds)


def instant(stamp: str | None) -> str:
    """An ISO time to the second, in UTC, as the daemon's messages have it; "" for none."""
    if not stamp:
        return ""
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return safe(stamp)


def span(seconds: float) -> str:
    """A time as people say it: `5s`, `3m12s`, `2h05m`, `3d04h`."""
    seconds = max(int(seconds), 0)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


def console() -> Console:
    """Standard output as it is now; plain where it is no terminal or NO_COLOR is set."""
    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR"))
    return Console(
        width=_width(),
        color_system=None if plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def line(text: str = "", *, style: str = "") -> None:
    """One line, as it is: wrapped by the terminal alone."""
    console().print(Text(safe(text), style=style))


def heading(text: str) -> None:
    """A section's title."""
    line()
    line(text, style="bold")


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """`Name:  value` lines; empty values are left out."""
    shown = [(name, safe(value)) for name, value in pairs if value not in (None, "", [], {})]
    left = max((len(name) for name, _ in shown), default=0) + 3
    for name, value in shown:
        console().print(Text.assemble((f"{name}:".ljust(left), "bold"), value))


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = True, least: int = _LEAST_PROSE
) -> None:
    """Aligned columns, the last of which may be prose of at least `least` cells.

    Where the terminal is too narrow the last column is wrapped, or put below its row, or each value gets a line of its
    own: nothing is lost. With `cut` off rows are left longer than the terminal. In a pipe a row is a line.
    """
    cells = [[safe("-" if value in (None, "") else value) for value in row] for row in rows]
    widths = [max(cell_len(text) for text in column) for column in zip(head, *cells, strict=True)]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    room = _width() if cut else PIPE_WIDTH
    if before + widths[-1] <= room or before + least <= room:
        _print_rows(head, cells, widths, room - before)
    elif before <= room:
        _print_rows(head[:-1], [row[:-1] for row in cells], widths, 0, below=[row[-1] for row in cells], room=room)
    else:
        _print_records(head, cells, room)


def block(text: str, *, indent: int) -> None:
    """Lines of evidence, each escaped and wrapped within its indentation."""
    for part in text.replace("\r\n", "\n").split("\n"):
        if part.strip():
            _indented(safe(part), indent, _width(), style="dim")


def hanging(text: str, *, indent: int) -> None:
    """One entry of a list, wrapped; what follows its first line stands deeper."""
    first, *rest = _wrapped(safe(text), max(_width() - indent - 4, 20))
    line(" " * indent + first)
    for more in rest:
        line(" " * (indent + 4) + more)


def _print_rows(
    head: Sequence[str],
    cells: list[list[str]],
    widths: list[int],
    last: int,
    *,
    below: Sequence[str] = (),
    room: int = PIPE_WIDTH,
) -> None:
    """Rows as columns; the last column in `last` cells, continued below itself; `below` is printed under each row."""
    out = console()
    out.print(_row(head, widths, style="bold"))
    left = sum(widths[: len(head) - 1]) + len(_GAP) * (len(head) - 1)
    for at, row in enumerate(cells):
        first, *rest = _wrapped(row[-1], max(last, widths[len(head) - 1] if below else 1))
        out.print(_row([*row[:-1], first], widths))
        for more in rest:
            out.print(Text(" " * left + more))
        if below and below[at] != "-":
            _indented(below[at], 4, room)


def _print_records(head: Sequence[str], cells: list[list[str]], room: int) -> None:
    left = max(map(len, head)) + 4
    for row in cells:
        line(row[0])
        for name, value in zip(head[1:], row[1:], strict=True):
            first, *rest = _wrapped(value, max(room - left, 20))
            console().print(Text.assemble("  ", (name.lower().ljust(left - 2), "bold"), _styled(first)))
            for more in rest:
                console().print(Text(" " * left + more))


def _row(row: Sequence[str], widths: list[int], style: str = "") -> Text:
    made = Text()
    for at, value in enumerate(row):
        made.append_text(Text(value, style=style) if style else _styled(value))
        if at < len(row) - 1:
            made.append(" " * (widths[at] - cell_len(value)) + _GAP)
    return made


def _styled(value: str) -> Text:
    return Text(value, style=_COLOURS.get(value, ""))


def _indented(text: str, indent: int, room: int, style: str = "") -> None:
    for part in _wrapped(text, max(room - indent, 20)):
        console().print(Text(" " * indent + part, style=style))


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken at spaces where there are any."""
    if cell_len(text) <= width:
        return [text]
    return [part.plain.rstrip() for part in Text(text).wrap(console(), width, overflow="fold")]


def _width() -> int:
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return PIPE_WIDTH


def error_line(text: str) -> None:
    """`stoker: what went wrong and what to do`, one line on standard error."""
    print(f"stoker: {safe(' '.join(text.split()))}", file=sys.stderr)


def problem_lines(where: str, detail: str, hint: str, problems: Sequence[Problem]) -> None:
    """A refusal: one line for each wrong place, or one for the whole."""
    before = f"{where}: " if where else ""
    if not problems and detail:
        error_line(f"{before}{detail}" + (f" ({hint})" if hint else ""))
    for problem in problems:
        error_line(f"{before}{problem}" if problem.path else f"{before}{str(problem).removeprefix(': ')}")


def labels_text(labels: dict[str, Any]) -> str:
    """`a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
