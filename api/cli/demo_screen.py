"""The demo on a terminal: the fleet, what it says of itself, and each fault with its steps, fitted to the window.

Draws what `demo_fleet` and `demo_story` hold; asks nobody and measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from api.cli.demo_fleet import DOWN, FOREIGN, FREE, LOADING, ORPHAN, SERVING, UNSEEN, Fleet, condition
from api.cli.demo_story import Chapter, Step
from api.cli.describe import placements
from api.cli.show import host_status
from api.cli.text import safe

_LETTERS = {
    SERVING: ("serving", "black on green"),
    LOADING: ("loading", "black on yellow"),
    DOWN: ("down", "white on red"),
    ORPHAN: ("leftover", "black on magenta"),
    FOREIGN: ("foreign work", "white on blue"),
    FREE: ("free", "dim"),
    UNSEEN: ("not known", "dim"),
}
_TRUTH = {"True": "green", "False": "red", "Unknown": "yellow"}
_KINDS = {
    "fault": ("!", "bold red"),
    "told": (" ", ""),
    "did": (">", "cyan"),
    "healed": ("=", "green"),
    "late": ("x", "red"),
}
_UNIT = re.compile(r"stoker-[a-z0-9-]+\.([a-z0-9.]+)\.service(?: on [a-z0-9-]+)?")
_FEWEST_STEPS = 3
_ROOMY = 30  # lines
_MOST_TEXT = 300  # the rest is in `stoker events`


@dataclass(frozen=True, slots=True)
class Scene:
    """All that one picture shows. `note` is what the demo itself waits for; `ask` how a person asks the daemon.

    `files` is said where the window has room for it.
    """

    title: str
    elapsed_s: float
    fleet: Fleet | None
    chapters: Sequence[Chapter]
    note: str
    ask: Sequence[str]
    files: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture, as many of the open fault's steps as the window has room for."""
        width, height = options.max_width, console.size.height
        above = [_title(self, width), *_fleet(self.fleet, width), Text()]
        below = [Text(), Text(safe(self.note), style="bold"), *(Text(safe(line), style="dim") for line in self.ask)]
        if self.files and height >= _ROOMY:
            below.append(Text(safe(self.files), style="dim"))
        taken = _lines(console, options, Group(*above, *below)) + len(self.chapters) + 1
        yield Group(*above, *_faults(self.chapters, max(height - taken - 1, _FEWEST_STEPS), width), *below)


def _lines(console: Console, options: ConsoleOptions, what: RenderableType) -> int:
    return len(console.render_lines(what, options, pad=False))


def _title(scene: Scene, width: int) -> Text:
    clock = seconds_text(scene.elapsed_s)
    left = f"Stoker demo  {scene.title}"
    return Text.assemble((left, "bold"), " " * max(width - len(left) - len(clock), 2), (clock, "bold"))


def _fleet(fleet: Fleet | None, width: int) -> list[RenderableType]:
    if fleet is None or not fleet.hosts:
        return [Text("nothing is declared yet", style="dim")]
    rows: list[Sequence[Text]] = []
    for name, item in fleet.hosts.items():
        status = host_status(item["status"])
        colour = "green" if status == "OK" else "yellow"
        left = [Text(name, style="bold"), _cards(fleet.cards(name)), Text(status, style=colour)]
        for spec, ready, reason in _specs_on(fleet, name) or [("", "", "")]:
            rows.append([*left, Text(spec), Text(ready, style=_TRUTH.get(ready, "")), Text(reason)])
            left = [Text(), Text(), Text()]
    return [*_aligned(("HOST", "CARDS", "STATUS", "SPEC", "READY", "REASON"), rows, width), _legend()]


def _specs_on(fleet: Fleet, host: str) -> list[tuple[str, str, str]]:
    found = []
    for name, item in fleet.specs.items():
        if host in {where for _, where, _, _ in placements(item["spec"])}:
            ready = condition(item, "Ready")
            drift = sum(len(instance.get("drift", [])) for instance in fleet.instances(name))
            found.append((name, ready["status"], ready["reason"] + (_differ(drift))))
    return found


def _differ(fields: int) -> str:
    if not fields:
        return ""
    return ", 1 field differs" if fields == 1 else f", {fields} fields differ"


def _cards(letters: str) -> Text:
    shown = Text()
    for letter in letters:
        shown.append(f" {letter}", style=_LETTERS.get(letter, ("", ""))[1])
    shown.append(" ", style="")
    return shown


def _legend() -> Text:
    shown = Text()
    for letter, (meaning, style) in _LETTERS.items():
        shown.append(letter, style=style)
        shown.append(f" {meaning}  ", style="dim")
    return shown


def _faults(chapters: Sequence[Chapter], room: int, width: int) -> Iterable[RenderableType]:
    """A line for each fault that was, and of the last one as many steps as there is room for."""
    if not chapters:
        return
    rows = [
        (Text(f"{one.number} {one.fault.name}"), Text(f"{one.fault.host} {one.fault.spec}"), *outcome(one))
        for one in chapters
    ]
    starred = any(one.fault.end is not None for one in chapters)
    did = "STOKER DID" + ("  * after its end" if starred else "")
    yield from _aligned(("FAULT", "WHERE", "FOUND", "HEALED", did), rows, width)
    for step in fitted(chapters[-1].steps, room):
        yield step_text(step, width)


def fitted(steps: Sequence[Step], room: int) -> Sequence[Step]:
    """At most `room` of the steps, in order: what was done to the fleet and for it goes before what was only told."""
    wanted = [step for step in steps if step.kind != "told"][:room]
    wanted += [step for step in reversed(steps) if step.kind == "told"][: room - len(wanted)]
    return [step for step in steps if step in wanted]


def outcome(one: Chapter) -> tuple[Text, Text, Text]:
    """How soon it was found and healed, and what was done for it. A star: since the fault itself ended."""
    found = Text("-" if one.found is None else seconds_text(one.found.after_s))
    star = "*" if one.fault.end is not None else ""
    if one.healed_s is not None:
        healed = Text(seconds_text(one.healed_s) + star, style="green")
    else:
        healed = Text("no", style="red") if one.outcome == "late" else Text("not yet", style="yellow")
    did = [*(["(systemd restarted it)"] if one.by_systemd else []), *one.actions]
    return found, healed, Text(", ".join(did))


def step_text(step: Step, width: int = 0) -> Text:
    """One step as a line; cut where a width is given."""
    mark, style = _KINDS[step.kind]
    said = short(step.text)
    said = said if len(said) <= _MOST_TEXT else said[: _MOST_TEXT - 1] + "…"
    reason = f"{step.reason}: " if step.reason and step.reason not in said else ""
    shown = Text(f"  {mark} {seconds_text(step.after_s):>7}  {safe(reason + said)}", style=style, no_wrap=True)
    if width:
        shown.truncate(width, overflow="ellipsis")
    return shown


def short(text: str) -> str:
    """A message whose unit is named by its role alone: spec and host stand above it."""
    return _UNIT.sub(lambda found: found[1], " ".join(text.split()))


def seconds_text(value: float) -> str:
    """`0.06 s`, `14.2 s`, `2m05s`."""
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 100 else f"{int(value) // 60}m{int(value) % 60:02d}s"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Columns as wide as what is in them; what does not fit is lost on the right, where it is least needed."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *(map(str, row) for row in rows), strict=True)]
    lines = []
    for row in ([Text(name, style="bold") for name in head], *rows):
        made = Text(no_wrap=True)
        for cell, room in zip(row, widths, strict=True):
            made.append_text(cell).append(" " * (room - len(cell) + 2))
        made.rstrip()
        made.truncate(width, overflow="ellipsis")
        lines.append(made)
    return lines
