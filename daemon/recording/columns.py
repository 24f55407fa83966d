"""nvidia-smi's CSV with other columns than the helper asks for, as people have it at hand, brought into its order.

Called by `answer`. Only a first line that names columns (`--format=csv` prints it) changes anything: what stands below
is then taken by name. A row that does not fit is left as it is, for the reader to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

GPUS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "mig.mode.current",
)
APPS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")
_ALSO = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "used_memory": "used_gpu_memory"}
_ALSO |= {"name": "process_name", "gpu_index": "index"}
_UNIT = re.compile(r" \[[^\]]*\]$")


def gpus_text(text: str) -> str:
    """Rows of cards in the helper's columns."""
    also = {key: value for key, value in _ALSO.items() if value in GPUS}
    return _ordered(text, GPUS, also, name="name")


def apps_text(text: str) -> str:
    """Rows of compute processes in the helper's columns."""
    also = {key: value for key, value in _ALSO.items() if value in APPS}
    return _ordered(text, APPS, also, name="process_name")


def _ordered(text: str, wanted: Sequence[str], also: dict[str, str], name: str) -> str:
    lines = text.split("\n")
    at = next((at for at, line in enumerate(lines) if line.strip()), 0)
    head = [_UNIT.sub("", cell.strip()) for cell in lines[at].split(",")]
    columns = [also.get(cell, cell) for cell in head]
    if len(head) < 2 or not set(columns) & set(wanted) or any(re.search(r"[^a-z0-9_.]", cell) for cell in head):
        return text
    return "\n".join(_row(line, columns, wanted, name) for line in lines[at + 1 :])


def _row(line: str, columns: Sequence[str], wanted: Sequence[str], name: str) -> str:
    """One row by the names of its columns; what the name column has too many commas of belongs to it."""
    cells = [cell.strip() for cell in line.split(",")]
    more = len(cells) - len(columns)
    if name in columns and more > 0:
        first = columns.index(name)
        cells[first : first + more + 1] = [", ".join(cells[first : first + more + 1])]
    if len(cells) != len(columns):
        return line
    values = dict(zip(columns, cells, strict=True))
    return ", ".join(values.get(column, "[N/A]") for column in wanted)
