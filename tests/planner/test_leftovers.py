"""What dead engines left in /dev/shm: only what is surely this unit's and nobody's any more is removed (case B10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.actions import SweepShm
from daemon.domain.health import Space
from daemon.domain.observation import Leftover, Unknown
from daemon.domain.status import Reason
from daemon.planner.plan import Plan, decide
from daemon.planner.world import World
from tests.planner.box import UUIDS
from tests.planner.test_field_cases import UNIT, Driver, down, known, look_of, settled, verbs

pytestmark = pytest.mark.strays
NCCL = Leftover("nccl-Ewjreo", 0, "root", 33_030_528, 7, "1.5", 200.0, held=False)


def with_left(*left: Leftover, down_s: float = 100.0, ran_s: float = 400.0, of: Driver | None = None) -> World:
    """The unit went down that long ago, having run since then."""
    d = down("failed") if of is None else of
    world = known(d.world())
    look = look_of(world)
    now_us = 1_000_000_000
    assert isinstance(look.units, tuple)
    units = tuple(
        replace(unit, inactive_enter_us=now_us - int(down_s * 1e6), exec_main_start_us=now_us - int(ran_s * 1e6))
        for unit in look.units
    )
    identity = replace(look.identity, monotonic_us=now_us)
    return replace(world, observation=replace(look, units=units, identity=identity, leftovers=left))


def swept(plan: Plan) -> list[str]:
    return [name for a in plan.actions if isinstance(a, SweepShm) for name, *_ in a.files]


def test_what_a_dead_engine_left_is_removed_and_then_the_unit_started() -> None:
    plan = decide(with_left(NCCL))
    assert next(type(action) for action in plan.actions) is SweepShm
    assert swept(plan) == ["nccl-Ewjreo"]
    assert verbs(plan) == ["start"]
    action = plan.actions[0]
    assert isinstance(action, SweepShm)
    assert action.files == (("nccl-Ewjreo", 0, 7, "1.5"),)
    assert "1 files of 31 MiB" in action.why
    assert action.reason is Reason.SHARED_MEMORY_LEFT


@given(
    name=st.sampled_from(["nccl-a", "cuda.shm.0", "sglang_loads_x", "psm_1", "torch_1_2", "sem.mp-x"]),
    uid=st.sampled_from([0, 1000]), held=st.booleans(), age_s=st.floats(-10, 1000), down_s=st.floats(0, 500),
    ran_for_s=st.floats(0, 400),
)  # fmt: skip
def test_nothing_held_nothing_of_another_user_and_nothing_younger_than_its_end_is_touched(
    name: str, uid: int, held: bool, age_s: float, down_s: float, ran_for_s: float
) -> None:
    one = Leftover(name, uid, "root" if uid == 0 else "alice", 1, 7, "1.5", age_s, held)
    plan = decide(with_left(one, down_s=down_s, ran_s=down_s + ran_for_s))
    engines_own = not name.startswith(("psm_", "torch_", "sem."))
    may = uid == 0 and not held and age_s > down_s and (engines_own or age_s <= down_s + ran_for_s)
    assert not swept(plan) or may
    if may and age_s > down_s + 1 and age_s <= down_s + ran_for_s - 1:
        assert swept(plan) == [name]


@pytest.mark.parametrize("left", [None, Unknown(Reason.TOOL_FAILED, "mappings")])
def test_what_is_not_known_is_not_removed_and_holds_nothing_up(left: Unknown | None) -> None:
    world = with_left(NCCL)
    plan = decide(replace(world, observation=replace(look_of(world), leftovers=left)))
    assert swept(plan) == []
    assert verbs(plan) == ["start"]


def test_nothing_is_removed_while_somebody_is_in_the_way() -> None:
    d = down("failed")
    d.box.spawn(("python3", "train.py"), "/system.slice/t.service", gpus={UUIDS[0]: 9_000})
    plan = decide(with_left(NCCL, of=d))
    assert swept(plan) == []
    assert plan.blocked[UNIT].reason is Reason.FOREIGN_HOLDER


@pytest.mark.parametrize(
    ("pct", "free_mib", "full"),
    [(99, 10, True), (100, 0, True), (98, 10, False), (None, 0, False), (99, 30_000, False)],
)
def test_a_full_shared_memory_holds_the_start_up_and_is_swept_meanwhile(
    pct: int | None, free_mib: int, full: bool
) -> None:
    world = with_left(NCCL)
    space = (Space("/", 100, 1, 0), Space("/dev/shm", pct, 1, free_mib))
    plan = decide(replace(world, observation=replace(look_of(world), space=space)))
    assert swept(plan) == ["nccl-Ewjreo"]
    assert verbs(plan) == ([] if full else ["start"])
    if full:
        assert plan.blocked[UNIT].reason is Reason.SHARED_MEMORY_FULL
        assert "fuser -v /dev/shm" in plan.blocked[UNIT].detail


def test_nothing_is_removed_for_a_unit_that_never_went_down_or_runs() -> None:
    world = with_left(NCCL)
    look = look_of(world)
    assert isinstance(look.units, tuple)
    never = tuple(replace(unit, inactive_enter_us=0) for unit in look.units)
    assert swept(decide(replace(world, observation=replace(look, units=never)))) == []
    d = down("failed")
    d.settle()
    assert swept(decide(with_left(NCCL, of=d))) == []


def test_a_unit_of_another_user_leaves_files_of_that_user() -> None:
    d = settled(user="alice")
    d.box._end(UNIT, d.box.units[UNIT], "failed")
    assert swept(decide(with_left(replace(NCCL, name="nccl-b", uid=1000, user="alice"), NCCL, of=d))) == ["nccl-b"]
