"""The clean barrier: no start on what is not free, no wait without an end, and what a person is told meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.actions import UnitVerb
from daemon.domain.observation import Listener, Process, ProcessId
from daemon.domain.status import Reason
from daemon.planner.cards import Card
from daemon.planner.conditions import spec_conditions
from daemon.planner.plan import Plan, decide
from daemon.planner.states import instance_state
from daemon.planner.waits import Wait
from daemon.planner.world import Record, StrayFact, World
from tests.planner.box import UUIDS
from tests.planner.driving import spec
from tests.planner.test_field_cases import UNIT, down, known, look_of, settled, verbs

pytestmark = pytest.mark.strays
TOTAL = 143_771


def with_loose(mib: int, since_s: float, fell_s: float | None = None, **more: object) -> World:
    """GPU 1 has had memory in use for that long that nobody explains, and it fell last so long ago."""
    world = down("inactive", **more).world()
    look = look_of(world)
    assert isinstance(look.gpus, tuple)
    gpus = tuple(replace(g, memory_used_mib=mib) if g.index == 1 else g for g in look.gpus)
    card = Card(
        look.identity.boot_id, "580.159.04", loose_since_s=world.now_s - since_s, low_mib=mib,
        fell_at_s=None if fell_s is None else world.now_s - fell_s,
    )  # fmt: skip
    assert isinstance(look.units, tuple)
    units = tuple(replace(unit, inactive_enter_us=0) for unit in look.units)
    return replace(world, observation=replace(look, gpus=gpus, units=units), cards={UUIDS[1]: card})


def start_of(plan: Plan) -> UnitVerb | None:
    return next((a for a in plan.actions if isinstance(a, UnitVerb) and a.verb == "start"), None)


@given(
    mib=st.integers(0, TOTAL), since_s=st.floats(0, 1e6), fell_s=st.one_of(st.none(), st.floats(0, 1e6)),
    idle=st.one_of(st.none(), st.integers(0, 1024)),
)  # fmt: skip
def test_a_start_needs_clean_memory_or_one_that_stood_still_and_leaves_enough(
    mib: int, since_s: float, fell_s: float | None, idle: int | None
) -> None:
    world = with_loose(mib, since_s, fell_s)
    card = replace(world.cards[UUIDS[1]], idle_mib=idle)
    world = replace(world, cards={UUIDS[1]: card})
    plan = decide(world)
    clean = mib <= max(600, (idle or 0) + 512)
    waits = since_s < 120 or (fell_s is not None and fell_s < 60)
    enough = TOTAL - mib >= 0.9 * TOTAL
    start = start_of(plan)
    assert (start is not None) == (clean or (not waits and enough))
    if start is not None:
        assert (start.reason is Reason.STARTED_ON_UNCLEAN_MEMORY) == (not clean)
    elif waits:
        assert plan.blocked[UNIT].reason is Reason.WAITING_FOR_MEMORY
    else:
        assert plan.blocked[UNIT].reason is Reason.UNATTRIBUTED_GPU_MEMORY


def test_memory_that_still_falls_is_waited_for_however_long_it_takes() -> None:
    """B17: no deadline cuts a falling series."""
    assert decide(with_loose(9_000, 86_400, 5)).blocked[UNIT].reason is Reason.WAITING_FOR_MEMORY
    assert verbs(decide(with_loose(9_000, 86_400, 61))) == ["start"]


def test_a_start_on_memory_in_use_is_told_as_degraded_until_the_next_one() -> None:
    world = with_loose(9_000, 121)
    start = start_of(decide(world))
    assert start is not None
    assert "GPU 1 shows 9000 MiB" in start.why
    d = down()
    d.turn()
    d.settle()
    world = d.world()
    desired = world.desired[0]
    assert isinstance(desired.declared.record, Record)
    record = replace(desired.declared.record, unclean=start.why)
    desired = replace(desired, declared=replace(desired.declared, record=record))
    for one, truth, reason in (
        (desired, "True", Reason.STARTED_ON_UNCLEAN_MEMORY),
        (world.desired[0], "False", Reason.OK),
    ):
        state = instance_state(one, decide(world), world)
        degraded = next(c for c in spec_conditions(1, [state]) if c.type == "Degraded")
        assert (degraded.status, degraded.reason) == (truth, reason)


@pytest.mark.parametrize(
    ("more", "mib", "starts"),
    [
        ({}, 20_000, False),
        ({"memoryFraction": 0.5}, 60_000, True),
        ({"memoryFraction": 0.5}, 80_000, False),
        ({"args": {"mem-fraction-static": "0.3"}}, 90_000, True),
        ({"engine": {"name": "vllm", "python": "/opt/venv/bin/python"}}, 12_000, False),
        ({"engine": {"name": "vllm", "python": "/opt/venv/bin/python"}}, 11_000, True),
        ({"engine": {"name": "vllm", "python": "/opt/venv/bin/python"}, "memoryFraction": 0.2}, 100_000, True),
    ],
)
def test_how_much_has_to_be_free_is_what_the_launch_says_or_the_engines_default(
    more: dict[str, object], mib: int, starts: bool
) -> None:
    plan = decide(with_loose(mib, 3_600, **more))
    assert (start_of(plan) is not None) == starts
    if not starts:
        told = plan.blocked[UNIT].detail
        assert "has to be free" in told
        assert "fuser" in told


def test_memory_of_unknown_size_holds_nothing_up() -> None:
    """A14: a card that shares the system's memory tells no figure."""
    world = with_loose(0, 0)
    look = look_of(world)
    assert isinstance(look.gpus, tuple)
    gpus = tuple(replace(gpu, memory_used_mib=None, memory_total_mib=None) for gpu in look.gpus)
    assert verbs(decide(replace(world, observation=replace(look, gpus=gpus)))) == ["start"]


def test_a_small_share_of_another_live_instance_explains_its_own_memory_and_no_more() -> None:
    d = down("inactive")
    world = d.world()
    look = look_of(world)
    assert isinstance(look.gpus, tuple)
    assert isinstance(look.apps, tuple)
    server = d.box.spawn(("/usr/bin/nvidia-cuda-mps-server",), "/gone", gpus={UUIDS[1]: 500})
    assert verbs(decide(known(d.world()))) == ["start"]
    look = look_of(known(d.world()))
    assert isinstance(look.gpus, tuple)
    gpus = tuple(replace(g, memory_used_mib=9_000) if g.index == 1 else g for g in look.gpus)
    plan = decide(known(d.world(replace(look, gpus=gpus))))
    assert plan.blocked[UNIT].reason is Reason.WAITING_FOR_MEMORY
    assert server.pid in d.box.procs


def survivor(state: str, marks: tuple[tuple[str, str], ...], minor: int) -> Process:
    return Process(
        ProcessId(4711, 5), 1, 4711, 4711, state, 0, "x", "/gone", ("VLLM::Worker",), marks,
        nvidia_open=True, nvidia_minors=frozenset({minor}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "ours", "killed_s", "minor", "reason"),
    [
        ("S", False, 30.0, 1, Reason.UNKILLABLE_PROCESS),
        ("D", False, 30.0, 0, Reason.UNKILLABLE_PROCESS),
        ("S", False, 2.0, 1, Reason.ORPHAN_WORKERS),
        ("D", True, None, 1, Reason.UNKILLABLE_PROCESS),
        ("D", True, None, 3, None),
        ("D", False, None, 1, None),
        ("S", True, None, 1, None),
        ("Z", True, 30.0, 1, None),
    ],
)
def test_what_survived_kill_or_is_ours_in_state_d_keeps_its_card_though_no_row_names_it(
    state: str, ours: bool, killed_s: float | None, minor: int, reason: Reason | None
) -> None:
    """B07: the driver forgets the row before the process is gone."""
    world = down("inactive").world()
    look = look_of(world)
    assert isinstance(look.processes, tuple)
    one = survivor(state, (("STOKER_STORE", "store-uid"),) if ours else (), minor)
    fact = StrayFact(world.now_s - 60, kill_at_s=None if killed_s is None else world.now_s - killed_s)
    look = replace(look, processes=(*look.processes, one))
    plan = decide(replace(world, observation=look, strays={**world.strays, one.id: fact}))
    if reason is None:
        assert verbs(plan) == ["start"]
    else:
        assert plan.blocked[UNIT].reason is reason
        assert "4711" in plan.blocked[UNIT].detail
        assert not verbs(plan)


@pytest.mark.parametrize("port", [30_234 + n for n in range(6)])
def test_a_derived_port_that_somebody_listens_on_holds_the_start_up(port: int) -> None:
    """B19: with attention DP SGLang binds port + 233 and the five after it."""
    args = {"dp-size": "2", "enable-dp-attention": True}
    world = down("inactive", args=args).world()
    look = look_of(world)
    assert port in world.desired[0].ports
    assert f"port {port}\n" in world.desired[0].gate
    taken = replace(look, listeners=(Listener("127.0.0.1", port, ()),))
    plan = decide(replace(world, observation=taken))
    assert plan.blocked[UNIT].reason is Reason.PORT_IN_USE
    assert str(port) in plan.blocked[UNIT].detail
    assert "another port" in plan.blocked[UNIT].detail
    plain = down("inactive").world()
    assert plain.desired[0].ports == (30_001,)
    assert verbs(decide(replace(plain, observation=replace(look_of(plain), listeners=taken.listeners)))) == ["start"]


def test_since_when_a_start_is_held_up_is_said_and_does_not_move() -> None:
    world = with_loose(20_000, 3_600)
    first = decide(replace(world, wall="2026-01-01T12:00:00Z")).blocked[UNIT]
    assert first.since == "2026-01-01T12:00:00Z"
    assert "(since 2026-01-01T12:00:00Z)" in first.detail
    waits = {UNIT: Wait(first.since, world.now_s)}
    later = replace(world, wall="2026-01-01T13:00:00Z", waits=waits, now_s=world.now_s + 3_600)
    assert decide(later).blocked[UNIT] == first


@pytest.mark.parametrize("what", ["card", "port"])
def test_what_runs_is_not_taken_down_for_a_launch_that_could_not_come_up(what: str) -> None:
    """A card or port declared anew that somebody holds: the unit serves on as it is until that one has left."""
    driver = settled(gpus=(0,))
    driver.turn()
    main = driver.box.units[UNIT].main
    held = {"gpus": {UUIDS[1]: 40_000}} if what == "card" else {"ports": (30_009,)}
    trainer = driver.box.spawn(("python3", "train.py"), "/system.slice/t.service", uid=5, **held)  # type: ignore[arg-type]
    driver.specs["m"] = spec(gpus=(1,)) if what == "card" else spec(gpus=(0,), port=30_009)
    for _ in range(6):
        plan = driver.turn()
        assert "restart" not in verbs(plan)
    assert driver.box.units[UNIT].main == main
    blocked = plan.blocked[UNIT]
    assert blocked.reason is (Reason.FOREIGN_HOLDER if what == "card" else Reason.PORT_IN_USE)
    world = driver.world()
    told = instance_state(world.desired[0], decide(world), world)
    assert (told.ready, told.reason, told.available) == ("False", Reason.ARGV_MISMATCH, "False")
    assert told.message.endswith(f"; not restarted: {blocked.reason}: {blocked.detail}")
    assert blocked.detail.startswith(f"it runs on as it is: pid {trainer.pid} (python3 train.py) of u5 holds")
    driver.box.die(trainer.pid)
    driver.settle()
    assert driver.serves("m")


@pytest.mark.parametrize("serves", [False, True])
def test_what_the_unit_itself_left_beside_it_keeps_no_declaration_waiting(serves: bool) -> None:
    """A worker out of the live unit's cgroup is nobody's to end while it lives, and its orphan once it is down.

    One that serves stays somebody's server then too: the unit is not taken down for it.
    """
    driver = settled(gpus=(0,))
    marks = driver.box.procs[driver.box.units[UNIT].main].marks
    ports = (9000,) if serves else ()
    left = driver.box.spawn(("sglang::scheduler",), "/gone", marks=marks, gpus={UUIDS[0]: 9_000}, ports=ports)
    main = driver.box.units[UNIT].main
    driver.specs["m"] = spec(gpus=(0,), port=30_009)
    if not serves:
        driver.settle()
        assert driver.serves("m")
        assert left.pid not in driver.box.procs
        return
    for _ in range(6):
        driver.facts |= {i: replace(f, serves=True, asked_at_s=driver.now_s) for i, f in driver.facts.items()}
        assert "restart" not in verbs(driver.turn())
    assert driver.box.units[UNIT].main == main


def test_a_launch_that_differs_is_restarted_for_beside_an_instance_that_makes_room() -> None:
    """The card of another instance of ours is waited for in the gate: it may be about to move itself."""
    driver = settled(gpus=(0,))
    driver.specs["n"] = spec("n", (1,), 30_002)
    driver.settle()
    driver.specs |= {"m": spec(gpus=(1,)), "n": spec("n", (0,), 30_002)}
    driver.settle()
    assert driver.serves("m")
    assert driver.serves("n")
