"""The scenarios, and how a point of one is played: cause, death, a daemon on the same store, and what must hold then.

At most one start for a cause; signals only to the identities that were orphans before the first one; nothing that was
acknowledged is lost; nothing is left behind, on the host or in the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from tests.hosts.crash_points.lane import EDITED, FIRST, UNIT, Lane, Starts
from tests.hosts.crash_points.recorder import Point

LIMIT_S = 90.0
STRAY = {"STANDIN_STRAY": "1", "STANDIN_STRAY_PORT": "1"}  # these ranks ignore TERM
DECLARED, RESTART = "put ServingSpec m", f"unit-restart {UNIT}"
Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cause: how it is brought about (it arms the point at the right moment), and what it may lead to."""

    key: str
    title: str
    cause: Callable[[Lane, Point | None], frozenset[Identity]]  # gives the orphans that it leaves
    starts: int
    may: tuple[str, ...] = ()  # commands that change something, beside taking the fence
    env: dict[str, str] = field(default_factory=dict)
    context: int = FIRST
    declared: bool = True  # the clean state has the spec Ready


@dataclass(frozen=True, slots=True)
class Before:
    """What was there before the cause."""

    starts: Starts
    restarts: int  # that the store's ledger counts


@dataclass(frozen=True, slots=True)
class Row:
    """How one point went."""

    scenario: str
    point: Point
    died: bool
    converged_s: float
    starts: int
    commands: tuple[str, ...]
    signals: int
    wrong: str = ""


def _declare(lane: Lane, point: Point | None) -> frozenset[Identity]:
    lane.daemon.points.arm(point, since=DECLARED)
    lane.put(FIRST, {})
    return frozenset()


def _crash(lane: Lane, point: Point | None) -> frozenset[Identity]:
    lane.host.sh(f"kill -KILL {lane.show('MainPID')['MainPID']}")
    lane.daemon.points.arm(point)
    return frozenset()


def _orphans(lane: Lane, point: Point | None) -> frozenset[Identity]:
    """The ranks left the unit's cgroup and ignore TERM, one is stopped; the launcher is killed."""
    pids = sorted({holder.pid for holder in lane.host.gpu_holders()})
    found = frozenset((pid, _start_ticks(lane, pid)) for pid in pids)
    lane.host.sh(f"kill -STOP {pids[-1]}; kill -KILL {lane.show('MainPID')['MainPID']}")
    lane.daemon.points.arm(point)
    return found


def _edit(lane: Lane, point: Point | None) -> frozenset[Identity]:
    lane.daemon.points.arm(point, since=DECLARED)
    lane.put(EDITED, {})
    return frozenset()


def _restart_daemon(lane: Lane, point: Point | None) -> frozenset[Identity]:
    lane.daemon.kill()
    lane.daemon.points.arm(point)
    lane.daemon.launch()
    return frozenset()


def _start_ticks(lane: Lane, pid: int) -> int:
    return int(lane.host.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])


SCENARIOS = (
    Scenario("b", "crash heals", _crash, 1),
    Scenario(
        "c", "orphans cleared, then started", _orphans, 1, ("signal-term", "signal-cont", "signal-kill"), STRAY
    ),
    Scenario("d", "launch edited", _edit, 1, (f"put-unit {UNIT}", RESTART), context=EDITED),
    Scenario(
        "a", "declared", _declare, 1,
        (f"put-unit {UNIT}", f"unit-enable {UNIT}", f"unit-start {UNIT}"), declared=False,
    ),
    Scenario("start", "daemon starts", _restart_daemon, 0),
)  # fmt: skip


def record(lane: Lane, scenario: Scenario) -> list[Point]:
    """The points of a scenario, in order, as one undisturbed run passes them."""
    before = _begin(lane, scenario)
    scenario.cause(lane, None)
    lane.daemon.wait(lambda: lane.converged(scenario.context, before.starts, scenario.starts), scenario.title, LIMIT_S)
    return [line["point"] for line in lane.daemon.points.lines()]


def play(lane: Lane, scenario: Scenario, point: Point) -> Row:
    """One point. Raises AssertionError when something is not as it must be."""
    before = _begin(lane, scenario)
    orphans = scenario.cause(lane, point)
    ids = [lane.daemon.points.id]
    converged = partial(lane.converged, scenario.context, before.starts, scenario.starts)
    died = lane.wait_dead(converged, LIMIT_S)
    if not died:
        try:
            return _judged(lane, scenario, point, ids, orphans, before, None)
        except httpx.HTTPError:
            lane.wait_dead(lambda: False, 5)  # all was settled, and the point passed only while that was judged
    began = time.monotonic()
    lane.daemon.points.arm()
    ids.append(lane.daemon.points.id)
    lane.daemon.start()
    lane.daemon.wait(converged, f"{scenario.key}: {point}: converges", LIMIT_S, "m")
    return _judged(lane, scenario, point, ids, orphans, before, time.monotonic() - began)


def _begin(lane: Lane, scenario: Scenario) -> Before:
    lane.fresh(scenario.env, declare=scenario.declared)
    return Before(lane.starts(), lane.restarts())


def _judged(
    lane: Lane,
    scenario: Scenario,
    point: Point,
    ids: list[str],
    orphans: frozenset[Identity],
    before: Before,
    took_s: float | None,
) -> Row:
    """The row; `took_s` is None when the daemon did not die."""
    temporary = lane.leftovers()
    _steady(lane)
    lines = lane.daemon.points.lines(*ids)
    commands = tuple(line["point"].name for line in lines if line["point"].stage == "sent")
    starts = lane.starts() - before.starts
    assert len(starts) == scenario.starts, f"started {len(starts)} times: {sorted(starts)}"
    strange = set(commands) - set(scenario.may) - {"take-fence"}
    assert not strange, f"commands that nothing asked for: {strange}"
    signals = [line for line in lines if line["point"].stage == "sent" and "targets" in line]
    _signals(lane, signals, orphans)
    _host(lane, orphans, temporary)
    _store(lane, scenario)
    counted = lane.restarts() - before.restarts
    assert counted >= commands.count(RESTART), f"{counted} restarts in the ledger, one too few is not safe"
    assert counted == 0 or RESTART in scenario.may, f"{counted} restarts in the ledger"
    return Row(scenario.key, point, took_s is not None, took_s or 0.0, len(starts), commands, len(signals))


def _steady(lane: Lane) -> None:
    """What converged stays so: further passes send no command that changes anything."""
    said = len(_sent(lane))
    passes = lane.daemon.metric("stoker_reconcile_total", result="ok")
    lane.daemon.wait(
        lambda: lane.daemon.metric("stoker_reconcile_total", result="ok") >= passes + 2, "two more passes", 30, "m"
    )
    assert len(_sent(lane)) == said, f"not steady: {_sent(lane)[said:]}"


def _sent(lane: Lane) -> list[str]:
    return [line["point"].name for line in lane.daemon.points.lines() if line["point"].stage == "sent"]


def _signals(lane: Lane, signals: list[dict[str, Any]], orphans: frozenset[Identity]) -> None:
    """Each only to an orphan by boot, pid and start ticks; KILL only to one that got a TERM before."""
    boot, termed = lane.host.boot_id(), set[Identity]()
    for line in signals:
        targets = {(pid, ticks) for pid, ticks in line["targets"]}
        name = line["point"].name
        assert line["boot"] == boot, "another boot"
        assert targets <= orphans, f"{name} to {targets - orphans}, orphans are {orphans}"
        assert name != "signal-kill" or targets <= termed, f"KILL without TERM: {targets - termed}"
        termed |= targets if name == "signal-term" else set()
    assert termed == orphans, f"signalled {termed}, orphans are {orphans}"


def _host(lane: Lane, orphans: frozenset[Identity], temporary: set[str]) -> None:
    """The unit is whole, its engine alone is on the cards, no orphan lives, no temporary file stayed."""
    unit = lane.show("InvocationID", "MainPID", "ActiveState", "UnitFileState", "NeedDaemonReload", "ControlGroup")
    assert (unit["ActiveState"], unit["UnitFileState"], unit["NeedDaemonReload"]) == ("active", "enabled", "no"), unit
    said = lane.daemon.instance("m")["invocation"]
    assert said == unit["InvocationID"], f"Ready by {said}, running is {unit}"
    holders = lane.host.gpu_holders()
    assert {holder.gpu for holder in holders} == {0, 1}, f"on the cards: {holders}"
    ours = (unit["ControlGroup"], f"/stray-{unit['MainPID']}")
    for pid in {holder.pid for holder in holders}:
        group = lane.host.read(f"/proc/{pid}/cgroup").strip().rpartition("0::")[2]
        assert group in ours, f"pid {pid} in {group} holds a card"
    for pid, ticks in orphans:
        stat = lane.host.sh(f"cat /proc/{pid}/stat", check=False).stdout
        assert not stat or stat.rpartition(")")[2].split()[19] != str(ticks), f"orphan {pid} lives"
    lane.daemon.wait(lambda: not temporary & lane.leftovers(), f"{temporary} are removed", 40)


def _store(lane: Lane, scenario: Scenario) -> None:
    """What was acknowledged is there with its generation; what was deleted before stays deleted; the file is whole."""
    assert lane.stored("PRAGMA quick_check") == [("ok",)], "the file is damaged"
    [(uid, generation, context)] = lane.stored(
        "SELECT uid, generation, json_extract(spec, '$.contextLength') FROM objects WHERE kind = 'ServingSpec'"
    )
    told = dict(lane.stored(
        f"SELECT generation, json_extract(spec, '$.contextLength') FROM history WHERE uid = '{uid}'"
    ))  # fmt: skip
    assert all(told.get(number) == said for number, said in lane.acknowledged), (told, lane.acknowledged)
    assert (generation, context) == (max(told), scenario.context), (generation, context, told)
    buried = len(lane.stored("SELECT uid FROM tombstones"))
    assert buried == lane.deleted, f"{buried} deletions of {lane.deleted} are kept"
    ready = lane.stored("SELECT ready_invocation_id, ready_generation FROM instances")
    assert ready == [(lane.daemon.instance("m")["invocation"], generation)], ready
