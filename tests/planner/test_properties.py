"""Properties of the planner over a small world: it converges from anywhere, after any death, never on an unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.domain.actions import Action, Signal
from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from daemon.planner.plan import decide, destructive
from tests.planner.box import UUIDS, Box, BoxUnit
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"

pytestmark = pytest.mark.main_job

troubles = st.lists(
    st.sampled_from(
        ["crash", "crash-leave", "edit-file", "stop", "disable", "respec", "foreign", "orphan-mark", "reboot", "reload",
         "delete", "drop-file", "orphan-group", "second", "drop-in", "set-environment", "hand-restart"]
    ),
    max_size=5,
)  # fmt: skip


def trouble(driver: Driver, what: str) -> None:
    box = driver.box
    unit = box.units.get(UNIT)
    match what:
        case "crash" | "crash-leave" if unit is not None and unit.active == "active":
            box.crash(UNIT, leave=what == "crash-leave")
        case "edit-file" if unit is not None and unit.file is not None:
            unit.file = unit.file.replace("Restart=always", "Restart=no")
        case "reload" if unit is not None and unit.file is not None:
            unit.file = unit.loaded = unit.file.replace("/models/m", "/models/other")
        case "stop" if unit is not None and unit.active == "active":
            box._end(UNIT, unit, "inactive")
        case "disable" if unit is not None:
            unit.enabled = False
        case "respec" if "m" in driver.specs:
            driver.specs["m"] = spec(contextLength=1000 + box.ticks)
        case "foreign":
            box.spawn(("python3", "train.py"), "/system.slice/train.service", gpus={UUIDS[3]: 30_000}, truth="foreign")
        case "orphan-mark":
            marks = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
            box.spawn(
                ("sglang::scheduler",), "/gone", gpus={UUIDS[0]: 9000}, marks=marks, truth="orphan", stubborn=True
            )
        case "orphan-group" if unit is not None and unit.active != "active":
            box.spawn(("python3",), box.group(UNIT), gpus={UUIDS[1]: 9000}, truth="orphan").start -= 5000
        case "reboot":
            box.procs.clear()
            for one in box.units.values():
                one.main, one.active, one.sub, one.invocation = 0, "inactive", "dead", ""
        case "drop-file" if unit is not None and unit.active in ("inactive", "failed"):
            box.units[UNIT] = BoxUnit()
        case "drop-in" if unit is not None and unit.file is not None:
            unit.dropins[f"/etc/systemd/system/{UNIT}.d/x.conf"] = "[Service]\nEnvironment=NCCL_DEBUG=INFO\n"
            unit.load()
        case "set-environment":
            box.manager["NCCL_ALGO"] = "Ring"
        case "hand-restart" if unit is not None and unit.active == "active":
            box.restart_by_hand(UNIT)
        case "second" if "n" not in driver.retired:  # the store refuses the name while it terminates
            driver.specs["n"] = spec("n", gpus=(2,), port=30002)
        case "delete" if "n" in driver.specs:
            driver.delete("n")
        case _:
            pass


@settings(max_examples=150, deadline=None)
@given(troubles, st.integers(0, 3))
def test_from_any_reachable_state_repeated_planning_converges_and_then_plans_nothing(
    what: list[str], turns: int
) -> None:
    driver = Driver(Box(), {"m": spec()})
    for one in what:
        for _ in range(turns):
            driver.turn()
        trouble(driver, one)
    plan = driver.settle()
    assert plan.actions == ()
    assert all(driver.serves(name) for name in driver.specs)
    assert not driver.retired
    assert all(truth != "foreign" for _, truth in driver.box.signalled)


@settings(max_examples=100, deadline=None)
@given(troubles, st.lists(st.integers(0, 3), max_size=6))
def test_any_prefix_of_any_plan_then_a_daemon_death_converges(what: list[str], prefixes: list[int]) -> None:
    driver = Driver(Box(), {"m": spec()})
    for one in what:
        driver.turn()
        trouble(driver, one)
    for upto in prefixes:
        driver.turn(upto)
        driver.die()
    assert driver.settle().actions == ()
    assert all(driver.serves(name) for name in driver.specs)
    assert all(truth != "foreign" for _, truth in driver.box.signalled)


def effects(actions: Iterable[Action]) -> set[object]:
    """What actions do, without the words for it."""
    found = set[object]()
    for action in actions:
        if isinstance(action, Signal):
            found |= {(action.signal, target) for target in action.targets}
        else:
            found.add(replace(action, why=""))
    return found


@settings(max_examples=150, deadline=None)
@given(
    troubles,
    st.sets(
        st.sampled_from(["gpus", "apps", "processes", "listeners", "units", "other_units", "sessions", "inherited"]),
        min_size=1,
    ),
)
def test_no_destructive_action_follows_from_an_unknown(what: list[str], hidden: set[str]) -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    for one in what:
        driver.turn()
        trouble(driver, one)
    world = driver.world()
    full = decide(world)
    unknown = Unknown(Reason.TRUNCATED)
    seen = replace(world.observation, **{name: unknown for name in hidden})
    plan = decide(replace(world, observation=seen))
    bad = [a for a in plan.actions if destructive(a)]
    signals_need = {"processes", "listeners", "units"} & hidden
    if signals_need:
        assert not [a for a in bad if type(a).__name__ == "Signal"]
    # With something hidden it may do less than with everything seen, never more.
    assert effects(bad) <= effects(full.actions)


def test_a_look_that_is_unknown_plans_nothing() -> None:
    driver = Driver(Box(), {"m": spec()})
    world = replace(driver.world(), observation=Unknown(Reason.LOOK_INCOMPLETE))
    assert decide(world).actions == ()


def test_a_change_outside_the_launch_plans_nothing() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    driver.specs["m"] = spec(readiness={"period": "90s"}, restart={"budget": 9})
    assert driver.turn().actions == ()
    assert driver.box.restarts == 0


def test_a_launch_change_restarts_once() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    driver.specs["m"] = spec(contextLength=4096)
    driver.settle()
    assert driver.box.restarts == 1


def test_an_orphan_is_not_signalled_on_first_sighting() -> None:
    driver = Driver(Box(), {"m": spec()})
    marks = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
    driver.box.spawn(("sglang::scheduler",), "/gone", gpus={UUIDS[0]: 9000}, marks=marks)
    first = driver.turn()
    assert not [a for a in first.actions if type(a).__name__ == "Signal"]
    second = driver.turn()
    assert [a for a in second.actions if type(a).__name__ == "Signal"]


def test_foreign_work_on_a_needed_card_blocks_the_start_and_is_named() -> None:
    driver = Driver(Box(), {"m": spec()})
    proc = driver.box.spawn(("python3", "train.py"), "/system.slice/t.service", gpus={UUIDS[0]: 9000}, truth="foreign")
    for _ in range(5):
        plan = driver.turn()
    assert plan.blocked[UNIT].reason is Reason.FOREIGN_HOLDER
    assert str(proc.pid) in plan.blocked[UNIT].detail
    assert "train.py" in plan.blocked[UNIT].detail
    assert not driver.box.signalled
