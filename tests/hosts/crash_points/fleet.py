"""Lanes side by side: who plays which point, and the table of it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from harness import Pool

from tests.hosts.crash_points.lane import UNIT, Lane
from tests.hosts.crash_points.play import SCENARIOS, Row, Scenario, play, record
from tests.hosts.crash_points.recorder import Point

LANES = 6
Job = tuple[Scenario, Point]


class Fleet:
    """The lanes of one test; leaving it ends their daemons and gives their hosts back."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._pooling = threading.Lock()  # a pool is for one thread at a time
        self._made = 0
        self._ended = False
        self._began = time.monotonic()
        self._lanes: dict[int, Lane] = {}

    def __enter__(self) -> Fleet:
        try:
            with ThreadPoolExecutor(LANES) as threads:
                list(threads.map(self._begin, range(LANES)))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._lanes.values():
            self._end(lane)

    def took_s(self) -> float:
        """Since the test began: hosts, recordings and points."""
        return time.monotonic() - self._began

    def record(self) -> dict[str, list[Point]]:
        """The points of each scenario, in order."""
        with ThreadPoolExecutor(LANES) as threads:
            found = list(threads.map(record, self._lanes.values(), SCENARIOS))
        return {scenario.key: points for scenario, points in zip(SCENARIOS, found, strict=True)}

    def play(self, jobs: Iterable[Job]) -> list[Row]:
        """A row for each job. A lane on which a point went wrong begins anew: clean host, empty store."""
        todo, rows = SimpleQueue[Job](), list[Row]()
        for job in jobs:
            todo.put(job)
        with ThreadPoolExecutor(LANES) as threads:
            working = [threads.submit(self._work, at, todo, rows) for at in range(LANES)]
            try:
                for one in working:
                    one.result()
            finally:
                self._ended = True  # an interrupted run ends with the points that are being played
        return rows

    def _work(self, at: int, todo: SimpleQueue[Job], rows: list[Row]) -> None:
        while not self._ended:
            try:
                scenario, point = todo.get_nowait()
            except Empty:
                return
            rows.append(self._played(at, scenario, point))
            with self._pooling, (self._folder / "rows.txt").open("a") as file:
                file.write(f"{_line(rows[-1])}\n{rows[-1].wrong}\n")

    def _played(self, at: int, scenario: Scenario, point: Point) -> Row:
        try:
            return play(self._lanes[at], scenario, point)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            wrong = f"{type(error).__name__}: {error}\n{where}{self._lanes[at].story()}"
            self._end(self._lanes[at])
            self._begin(at)
            return Row(scenario.key, point, False, 0, 0, (), 0, wrong)

    def _begin(self, at: int) -> None:
        """A lane on the host of that number, clean, with an empty store."""
        with self._pooling:  # also: hosts that boot one after the other are up sooner than all at once
            self._made += 1
            host, data = self._pool.make_host(f"crash{at}"), self._folder / f"lane{self._made}"
        self._lanes[at] = Lane(host, data)
        self._lanes[at].begin()

    def _end(self, lane: Lane) -> None:
        lane.daemon.kill()
        with self._pooling:
            self._pool.release(lane.host)


def chosen(recorded: dict[str, list[Point]], *, all_of_them: bool) -> list[Job]:
    """What to play: all, or the first point of each name and stage. Scenarios that take longest come first."""
    kinds, jobs = set[tuple[str, str]](), list[Job]()
    for scenario in SCENARIOS:
        for point in recorded[scenario.key]:
            if all_of_them or (point.name, point.stage) not in kinds:
                jobs.append((scenario, point))
            kinds.add((point.name, point.stage))
    return sorted(jobs, key=lambda job: -len(recorded[job[0].key]))


def table(recorded: dict[str, list[Point]], rows: list[Row]) -> str:
    """One line a point, by scenario and in order; then how many of those recorded were played."""
    lines = [f"\n{'scenario':<9} {'killed at':<62} {'converged':>9}  starts  signals  commands"]
    for scenario in SCENARIOS:
        order = recorded[scenario.key]
        mine = [row for row in rows if row.scenario == scenario.key]
        lines.append(f"-- {scenario.key}: {scenario.title}: {len(order)} points, {len(mine)} played")
        lines += [_line(row) for row in sorted(mine, key=lambda row: order.index(row.point))]
    times = sorted(row.converged_s for row in rows if row.died) or [0.0]
    died = sum(row.died for row in rows)
    lines.append(
        f"{died} deaths; converged within {times[len(times) // 2]:.1f} s (median), {times[-1]:.1f} s (longest)"
    )
    return "\n".join(lines)


def _line(row: Row) -> str:
    if row.wrong:
        return f"{row.scenario:<9} {row.point!s:<62} WRONG: {row.wrong.splitlines()[0]}"
    took = f"{row.converged_s:>7.1f} s" if row.died else "not passed"
    commands = ", ".join(name.removesuffix(UNIT).strip() for name in row.commands if not name.startswith("signal-"))
    return f"{row.scenario:<9} {row.point!s:<62} {took:>9}  {row.starts:>6}  {row.signals:>7}  {commands}"
