"""The table of figures: what was measured, the target, and whether it was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

GROSS = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `target` None: told beside the others, not held to anything.

    `steady`: who else uses this machine does not move it, so that any miss is a gross one.
    """

    name: str
    value: float
    unit: str
    target: float | None
    note: str = ""
    steady: bool = False

    @property
    def gross(self) -> bool:
        return self.target is not None and self.value > (1 if self.steady else GROSS) * self.target

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "GROSS MISS" if self.gross else "miss" if self.value > self.target else "met"


@dataclass
class Figures:
    """The rows of one run, in the order in which they were measured."""

    rows: list[Figure] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, target: float | None = None, note: str = "", *, steady: bool = False
    ) -> None:
        """Notes a figure. Fails when it misses its target grossly."""
        figure = Figure(name, value, unit, target, note, steady)
        self.rows.append(figure)
        assert not figure.gross, f"{name}: {value:.4g} {unit}, the target is {target:g}"

    def spread(self, name: str, values: Sequence[float], unit: str, target: float | None, note: str) -> None:
        """Notes the median of many, with their 95th percentile beside it."""
        p95 = quantiles(values, n=20, method="inclusive")[-1]
        self.add(name, median(values), unit, target, f"median of {len(values)}, p95 {p95:.4g}; {note}")

    def table(self) -> str:
        """All rows, aligned."""
        head = ("figure", "measured", "target", "", "how")
        lines = [head, *map(_cells, self.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cells(row: Figure) -> tuple[str, str, str, str, str]:
    target = "" if row.target is None else f"<= {row.target:g} {row.unit}"
    return row.name, f"{row.value:.4g} {row.unit}", target, row.verdict, row.note
