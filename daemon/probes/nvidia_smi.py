"""The answers of `nvidia-smi --query-…=… --format=csv,noheader,nounits`: cards and the processes on them.

Called by `report`. Values are taken by position, since the tool renames columns; rows are read from the outside in,
since it quotes nothing. A row that cannot be read makes the whole answer unknown: never fewer rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from daemon.domain.errors import ended
from daemon.domain.observation import Gpu, GpuApp, Unknown
from daemon.domain.status import Reason

PARTIAL_EXIT = 14  # infoROM corrupted: rows stay good (tool's manual, seen on 450 to 580)
_ERROR = "[Unknown Error]"
_NO_VALUE = frozenset({"", "N/A", "[N/A]", "[Not Supported]", _ERROR, "[Insufficient Permissions]"})
_NO_VALUE_LONG = frozenset({"[Requested functionality has been deprecated]", "[Not Found]", "[Not Available]"})
_FAULTS = {"[GPU requires reset]": Reason.GPU_NEEDS_RESET, "[GPU is lost]": Reason.GPU_LOST}
_WARNING = re.compile(r"WARNING: infoROM is corrupted at gpu (\S+)", re.IGNORECASE)
_UNIT = re.compile(r" (MiB|%|C|W)$")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,100}")
_WHOLE = re.compile(r"[0-9]{1,10}")
_FIGURE = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")
_SENTENCES = (
    ("Failed to initialize NVML: Driver/library version mismatch", Reason.DRIVER_LIBRARY_MISMATCH),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", Reason.DRIVER_NOT_LOADED),
    ("Failed to initialize NVML: Driver Not Loaded", Reason.DRIVER_NOT_LOADED),
    ("No devices were found", Reason.GPU_MISSING),
)
_HANDLE = "Unable to determine the device handle for"
_MIG_MODES = frozenset({"Enabled", "Disabled"})
_DETAIL_CHARS = 500
_GPU_CELLS_LEFT = 3  # index, uuid, bus id; then the name
_GPU_CELLS_RIGHT = 6  # driver, total, used, utilisation, temperature, MIG mode


def sentence(lines: Sequence[str]) -> Unknown | None:
    """The driver's own words about why there is no answer, at the start of any line."""
    for line in lines:
        if line.startswith(_HANDLE):
            return Unknown(
                Reason.GPU_LOST if "GPU is lost" in line else Reason.DEVICE_HANDLE_ERROR, line[:_DETAIL_CHARS]
            )
        for text, reason in _SENTENCES:
            if line.startswith(text):
                return Unknown(reason, " / ".join(lines)[:_DETAIL_CHARS])
    return None


def _lines(text: str) -> list[str]:
    return [line for line in (raw.strip() for raw in text.removeprefix("\ufeff").split("\n")) if line]


def failure(exit_status: int, text: str) -> Unknown | None:
    """Why an answer with this exit status is no answer; None when its rows may be read."""
    lines = _lines(text)
    said = sentence(lines)
    if said is not None:
        return said
    if exit_status in (0, PARTIAL_EXIT):
        return None if text.endswith("\n") or not lines else Unknown(Reason.TRUNCATED, lines[-1][:_DETAIL_CHARS])
    detail = ended(exit_status, " / ".join(lines))[:_DETAIL_CHARS]
    match exit_status:
        case 124 | 137:
            return Unknown(Reason.TOOL_TIMED_OUT, detail)
        case 127:
            return Unknown(Reason.TOOL_MISSING, "nvidia-smi is in none of its usual places")
        case 27:
            return Unknown(Reason.TRUNCATED, detail)
        case 9:
            return Unknown(Reason.DRIVER_NOT_LOADED, detail)
        case 18:
            return Unknown(Reason.DRIVER_LIBRARY_MISMATCH, detail)
        case _:
            return Unknown(Reason.TOOL_FAILED, detail)


def parse_gpus(exit_status: int, text: str) -> tuple[tuple[Gpu, ...] | Unknown, tuple[Unknown, ...]]:
    """The cards by index, and warnings: unknown bracket tokens and corrupted infoROMs."""
    broken = failure(exit_status, text)
    if broken is not None:
        return broken, ()
    corrupted, warnings, gpus = [], [], []
    for line in _lines(text):
        found = _WARNING.match(line)
        if found:
            corrupted.append(found[1])
            warnings.append(Unknown(Reason.INFOROM_CORRUPTED, line[:_DETAIL_CHARS]))
        elif line.startswith("WARNING:"):
            warnings.append(Unknown(Reason.TOOL_FAILED, line[:_DETAIL_CHARS]))
        elif not line.startswith("index,"):
            gpu = _gpu(line, warnings)
            if gpu is None:
                return Unknown(Reason.UNPARSABLE, line[:_DETAIL_CHARS]), tuple(warnings)
            gpus.append(gpu)
    if not gpus:
        return Unknown(Reason.GPU_MISSING, f"exit status {exit_status} and no row"), tuple(warnings)
    if len({gpu.index for gpu in gpus}) < len(gpus) or len({gpu.uuid for gpu in gpus}) < len(gpus):
        return Unknown(Reason.UNPARSABLE, "two rows name the same GPU"), tuple(warnings)
    places = frozenset(map(_place, corrupted))
    marked = (_warned(gpu, places) for gpu in gpus)
    return tuple(sorted(marked, key=lambda gpu: gpu.index)), tuple(warnings)


def _gpu(line: str, warnings: list[Unknown]) -> Gpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < _GPU_CELLS_LEFT + 1 + _GPU_CELLS_RIGHT:
        return None
    index, uuid, bus_id = cells[:_GPU_CELLS_LEFT]
    driver, *figures, mig = cells[-_GPU_CELLS_RIGHT:]
    if not (_WHOLE.fullmatch(index) and _UUID.fullmatch(uuid) and uuid.startswith("GPU-")):
        return None
    fault = next((_FAULTS[cell] for cell in cells if cell in _FAULTS), None)
    if fault is None and _ERROR in figures[:2]:  # memory that could not be read is not a card without memory of its own
        fault = Reason.DEVICE_HANDLE_ERROR
    numbers: list[int | None] = []
    for cell in figures if mig in _MIG_MODES else (*figures, mig):
        try:
            numbers.append(number(cell, warnings))
        except ValueError:
            return None
    total, used, utilization, temperature, *other = numbers
    if min(total or 0, used or 0) < 0 or any(mode is not None for mode in other):
        return None
    return Gpu(
        index=int(index),
        uuid=uuid,
        bus_id=bus_id,
        name=", ".join(cells[_GPU_CELLS_LEFT:-_GPU_CELLS_RIGHT]),
        driver=driver.split(" [")[0],
        memory_total_mib=None if fault else total,
        memory_used_mib=None if fault else used,
        temperature_c=temperature,
        utilization_pct=utilization,
        mig=mig == "Enabled",
        fault=fault,
    )


def number(cell: str, warnings: list[Unknown] | None = None) -> int | None:
    """A figure, with or without its unit; None for "no value". Raises ValueError on anything else."""
    if len(cell) <= 12 and cell.isascii() and cell.isdigit():
        return int(cell)
    if cell in _NO_VALUE or cell in _NO_VALUE_LONG or cell in _FAULTS:
        return None
    if cell.startswith("[") and cell.endswith("]"):
        if warnings is not None:
            warnings.append(Unknown(Reason.UNPARSABLE, f"unknown token {cell[:80]}"))
        return None
    figure = _FIGURE.fullmatch(_UNIT.sub("", cell))
    if figure is None:
        raise ValueError(cell)
    return round(float(figure[0]))


def _warned(gpu: Gpu, corrupted: frozenset[str]) -> Gpu:
    """The card, with its warning when a warning line names its place."""
    return replace(gpu, warning=Reason.INFOROM_CORRUPTED) if _place(gpu.bus_id) in corrupted else gpu


def _place(bus_id: str) -> str:
    """A bus id in one spelling: its domain has four or eight digits, its letters either case."""
    return bus_id.lower().lstrip("0")


def parse_apps(exit_status: int, text: str) -> tuple[GpuApp, ...] | Unknown:
    """The compute processes as the driver names them; a header alone is none."""
    broken = failure(exit_status, text)
    if broken is not None:
        return broken
    apps = []
    for line in _lines(text):
        if line.startswith(("WARNING:", "gpu_uuid,")):
            continue
        app = _app(line)
        if app is None:
            return Unknown(Reason.UNPARSABLE, line[:_DETAIL_CHARS])
        apps.append(app)
    return tuple(apps)


def _app(line: str) -> GpuApp | None:
    """uuid and pid from the left, memory from the right: what is between is the name, commas and all."""
    uuid, _, rest = line.partition(",")
    pid, _, rest = rest.partition(",")
    name, comma, memory = rest.rpartition(",")
    pid = pid.strip()
    if not comma or not _UUID.fullmatch(uuid.strip()) or not _WHOLE.fullmatch(pid):
        return None
    try:
        return GpuApp(uuid.strip(), int(pid), name.strip(), number(memory.strip()))
    except ValueError:
        return None
