"""How the demo is shown: one picture that changes on a terminal, a line for each thing that happens in a pipe.

Called by the demo. Both print the same table at the end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from rich.console import Console
from rich.live import Live

from api.cli.demo_director import Director
from api.cli.demo_screen import Scene, outcome, step_text
from api.cli.demo_story import Step
from api.cli.text import line, table


class View(Protocol):
    """Somewhere to show the demo."""

    def say(self, text: str) -> None:
        """Something about the demo itself."""

    def open(self, url: str, ask: Sequence[str], files: str) -> None:
        """The daemon answers."""

    def show(self, scene: Scene, steps: Sequence[Step]) -> None:
        """A new reading, with the steps that are new in it."""

    def close(self, director: Director) -> None:
        """All has ended."""


@contextlib.contextmanager
def view() -> Iterator[View]:
    """The screen where standard output is a terminal, else lines."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    plain = Console(highlight=False, markup=False, emoji=False)
    with Live(console=plain, screen=True, auto_refresh=False) as live:
        yield Screen(live)


class Lines:
    """For a pipe or a file: nothing moves."""

    def __init__(self) -> None:
        self._fault = 0

    def say(self, text: str) -> None:
        line(f"demo: {text}")
        sys.stdout.flush()

    def open(self, url: str, ask: Sequence[str], files: str) -> None:
        self.say(f"the daemon answers at {url}; ask it from another terminal:")
        for text in ask:
            line(f"  {text}")
        self.say(files)

    def show(self, scene: Scene, steps: Sequence[Step]) -> None:
        if steps and scene.chapters[-1].number != self._fault:
            one = scene.chapters[-1]
            self._fault = one.number
            line(f"fault {one.number}, {one.fault.name} on {one.fault.host}, {one.fault.spec}: {one.fault.title}")
        for step in steps:
            line(step_text(step).plain)
        sys.stdout.flush()

    def close(self, director: Director) -> None:
        summary(director)


class Screen:
    """For a terminal: the alternate screen, and the table on the ordinary one when it ends."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last = Scene("", 0, None, (), "", ())

    def say(self, text: str) -> None:
        if not self._live.is_started:
            return
        self._last = replace(self._last, note=text)
        self._live.update(self._last, refresh=True)

    def open(self, url: str, ask: Sequence[str], files: str) -> None:
        self.say(f"the daemon answers at {url}")

    def show(self, scene: Scene, steps: Sequence[Step]) -> None:
        self._last = scene
        self._live.update(scene, refresh=True)

    def close(self, director: Director) -> None:
        self._live.stop()
        summary(director)


def summary(director: Director) -> None:
    """What was shown, as a table that stays."""
    if not director.chapters:
        line("no fault was shown")
        return
    rows = []
    for one in director.chapters:
        found, healed, did = outcome(one)
        where = f"{one.fault.host} {one.fault.spec}"
        by = f" by {one.found.reason}" if one.found is not None else ""
        rows.append((one.number, one.fault.name, where, f"{found.plain}{by}", healed.plain, did.plain))
    table(("", "FAULT", "WHERE", "FOUND AFTER", "HEALED AFTER", "STOKER DID"), rows)
    if any(one.fault.end is not None for one in director.chapters):
        line("* since the fault itself ended")
