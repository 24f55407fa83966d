"""How the holders of a host are printed: by `stoker strays` and `stoker describe host`. Concludes nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from api.cli.text import age, hanging, table

MOST_ON_A_CARD = 4
LEAST_WHAT = 60  # what is said of a process is put below its row where there is less room
SENTENCE_CHARS = 160
_HEAD = ("PID", "OWNER", "VERDICT", "AGE", "USER")
_MORE = ("STATE", "PARENT", "SEEN", "UNIT")
_STATES = {"D": "uninterruptible", "Z": "defunct", "T": "stopped", "t": "stopped"}


def stray_table(lists: Sequence[dict[str, Any]], *, named: bool, wide: bool = False) -> bool:
    """A row for each process of these lists, with its host where there are several; whether there was any."""
    rows = [
        (*((found["host"],) if named else ()), *_row(item, wide)) for found in lists for item in found["items"] or ()
    ]
    head = (*(("HOST",) if named else ()), *_HEAD, *(_MORE if wide else ()), "WHAT")
    if rows:
        table(head, rows, cut=not wide, least=LEAST_WHAT)
    return bool(rows)


def _row(item: dict[str, Any], wide: bool) -> tuple[object, ...]:
    parent = item.get("parent") or {}
    command = str(parent.get("command") or "")
    more = (
        item.get("state"),
        f"{parent.get('pid')} {command[:40]}".strip(),
        age(item.get("firstSeenAt")),
        item["unit"],
    )
    row = (item["pid"], item["owner"], item["verdict"], age(item["startedAt"]), item["user"] or item["uid"])
    return (*row, *(more if wide else ()), _what(item, wide))


def _what(item: dict[str, Any], wide: bool) -> str:
    """What it holds, what it is, the proof, and what is done about it."""
    command = str(item["command"])
    if not wide and len(command) > SENTENCE_CHARS:
        command = command[:SENTENCE_CHARS] + " …"
    held = [f"GPU {_card(its)} ({_mib(its['memoryMib'])})" for its in item["gpus"]]
    held += [f"port {port}" for port in item["ports"]]
    parts = [f"{', '.join(held) or 'cgroup ' + str(item['cgroup'])}: {command}", item["proof"], item["detail"]]
    if state := _STATES.get(item["state"]):
        parts.insert(1, state)
    if item.get("askedBy"):
        parts.append(f"asked for by {item['askedBy']}")
    return "; ".join(map(str, parts))


def _card(held: dict[str, Any]) -> object:
    """Its index; what has none (a part of a card, or a card that is gone) is named by its UUID."""
    return held["uuid"] if held["index"] is None or held["index"] < 0 else held["index"]


def _mib(mib: Any) -> str:
    return "memory not known" if mib is None else f"{mib} MiB"


def not_known(found: dict[str, Any]) -> Iterator[str]:
    """What is missing from the list, and rows of the driver that name nobody there."""
    for its in found.get("unknown") or ():
        detail = f": {its['detail']}" if its.get("detail") else ""
        yield f"{its['what']} not known: {its['reason']}{detail}"
    unseen = found.get("unseen") or ()
    for its in unseen[:MOST_ON_A_CARD]:
        yield f"GPU {its['gpu']}: the driver names pid {its['pid']} ({_mib(its['memoryMib'])}), which is nobody here"
    if len(unseen) > MOST_ON_A_CARD:
        yield f"and {len(unseen) - MOST_ON_A_CARD} more pids of the driver that are nobody here"


def gpu_table(gpus: Sequence[dict[str, Any]], live: dict[str, Any]) -> None:
    """Each card with its memory and who holds it, as last seen."""
    models = {(its.get("product"), its.get("driver")) for its in gpus}
    same = len(models) == 1
    if same:
        hanging(", driver ".join(str(part) for part in models.pop() if part), indent=2)
    figures = {its["uuid"]: its for its in live.get("gpus") or ()}
    rows = [
        (
            its.get("index"),
            *(() if same else (f"{its.get('product')} {its.get('driver')}",)),
            _memory(figures.get(its.get("uuid"), {})),
            _health(its),
            its.get("uuid"),
            _held_by(str(its.get("uuid")), live),
        )
        for its in gpus
    ]
    table(("GPU", *(() if same else ("PRODUCT",)), "MEMORY", "HEALTH", "UUID", "HELD BY"), rows)


def _health(gpu: dict[str, Any]) -> str:
    if gpu.get("fault"):
        return f"unusable: {gpu['fault']}"
    return f"usable, {gpu['warning']}" if gpu.get("warning") else "usable"


def _memory(figures: dict[str, Any]) -> str:
    used, total = figures.get("memoryUsedMib"), figures.get("memoryTotalMib")
    return "?" if used is None else f"{used}/{'?' if total is None else total} MiB"


def _held_by(uuid: str, live: dict[str, Any]) -> str:
    """The card's holders, strays first; `?` where they are not known, nothing where there is none."""
    if live.get("items") is None or any(its["what"] != "gpus" for its in live.get("unknown") or ()):
        return "?"
    named = [(item, its["memoryMib"]) for item in live["items"] for its in item["gpus"] if its["uuid"] == uuid]
    found = [f"pid {item['pid']} {_whose(item)}, {_mib(mib)}" for item, mib in named]
    ghosts = [its for its in live.get("unseen") or () if its["uuid"] == uuid]
    found += [f"pid {its['pid']} of the driver, nobody here, {_mib(its['memoryMib'])}" for its in ghosts]
    return cut_list(found, MOST_ON_A_CARD)


def _whose(item: dict[str, Any]) -> str:
    return f"({item['owner']}{' of ' + str(item['unit']) if item['unit'] else ''})"


def cut_list(found: Iterable[str], most: int) -> str:
    """The first of them, and how many more there are."""
    shown = list(found)
    more = len(shown) - most
    return "; ".join(shown[:most]) + (f"; and {more} more" if more > 0 else "")
