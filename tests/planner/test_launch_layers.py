"""Restart is the dangerous action: what systemd loaded, what people add, and launches that show in no argv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from daemon.domain.actions import PutUnit, UnitVerb
from daemon.domain.observation import Loaded, Observation, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.plan import Plan, decide
from daemon.planner.states import instance_state
from tests.planner.box import Box
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"
DROPIN = f"/etc/systemd/system/{UNIT}.d/override.conf"

pytestmark = pytest.mark.main_job


def settled(**more: object) -> Driver:
    driver = Driver(Box(), {"m": spec(**more)})
    driver.settle()
    return driver


def seen(driver: Driver, change: Callable[[Unit], Unit]) -> Observation:
    """The look of now with the unit changed."""
    look = driver.box.look(driver.now_s, (UNIT,))
    assert isinstance(look.units, tuple)
    return replace(look, units=tuple(change(unit) if unit.name == UNIT else unit for unit in look.units))


def loaded(unit: Unit, **changes: object) -> Unit:
    assert isinstance(unit.loaded, Loaded)
    return replace(unit, loaded=replace(unit.loaded, **changes), dropin_paths=(DROPIN,))  # type: ignore[arg-type]


def changes(plan: Plan) -> list[str]:
    return [a.verb if isinstance(a, UnitVerb) else type(a).__name__ for a in plan.actions]


def ready(driver: Driver, look: Observation | None = None) -> tuple[str, Reason]:
    world = driver.world(look)
    state = instance_state(world.desired[0], decide(world), world)
    return state.ready, state.reason


def test_a_variable_that_somebody_adds_in_a_dropin_is_shown_and_nothing_is_written_again() -> None:
    driver = settled()
    look = seen(driver, lambda u: loaded(u, env=(*u.loaded.env, ("NCCL_DEBUG", "INFO"))))  # type: ignore[union-attr]
    plan = decide(driver.world(look))
    assert plan.actions == ()
    assert plan.blocked[UNIT].reason is Reason.DRIFT_CONTESTED
    assert DROPIN in plan.blocked[UNIT].detail
    assert [d.field for d in plan.drift] == ["env.NCCL_DEBUG"]
    assert ready(driver, look) == ("True", Reason.GENERATED)


def test_what_runs_as_a_persons_dropin_says_is_never_restarted() -> None:
    driver = settled()
    other = ("/opt/venv/bin/python", "-m", "sglang.launch_server", "--port", "30001")

    def overridden(unit: Unit) -> Unit:
        assert unit.main is not None
        return replace(loaded(unit, argv=other), main=replace(unit.main, argv=other))

    look = seen(driver, overridden)
    assert decide(driver.world(look)).actions == ()
    assert ready(driver, look) == ("False", Reason.ARGV_MISMATCH)


def test_a_dropin_that_waits_for_a_reload_is_reloaded_once() -> None:
    driver = settled()
    look = seen(driver, lambda u: replace(u, need_daemon_reload=True, dropin_paths=(DROPIN,)))
    assert changes(decide(driver.world(look))) == ["PutUnit"]


def test_a_process_that_changes_its_own_argv_is_not_restarted_for_it() -> None:
    driver = settled()
    look = seen(driver, lambda u: replace(u, main=replace(u.main, argv=("server: idle",))))  # type: ignore[type-var]
    plan = decide(driver.world(look))
    assert plan.actions == ()
    assert plan.blocked[UNIT].reason is Reason.DRIFT_CONTESTED
    assert ready(driver, look)[0] == "False"


def test_a_script_runs_under_its_interpreter() -> None:
    driver = settled()
    look = seen(
        driver,
        lambda u: replace(u, main=replace(u.main, argv=("/usr/bin/python3", "-u", *u.main.argv))),  # type: ignore
    )
    assert decide(driver.world(look)).actions == ()
    assert ready(driver, look) == ("True", Reason.GENERATED)


def test_no_restart_while_what_systemd_loaded_is_unknown() -> None:
    driver = settled()
    driver.specs["m"] = spec(contextLength=4096)
    driver.turn(1)  # written, and the daemon stopped before the restart
    look = seen(driver, lambda u: replace(u, loaded=Unknown(Reason.TOOL_TIMED_OUT)))
    assert decide(driver.world(look)).actions == ()
    assert changes(decide(driver.world())) == ["restart"]


@pytest.mark.parametrize("after", [{"user": "serve"}, {"workingDirectory": "/srv"}, {"env": {}}])
@pytest.mark.parametrize("upto", [None, 1])
def test_a_launch_change_that_shows_in_no_argv_restarts_once_and_is_never_ready_before(
    after: dict[str, object], upto: int | None
) -> None:
    driver = settled(env={"A": "1"})
    driver.specs["m"] = spec(**({"env": {"A": "1"}} | after))
    assert ready(driver)[0] == "False"
    driver.turn(upto)
    if driver.box.restarts == 0:
        assert ready(driver)[0] == "False"
    driver.settle()
    assert driver.box.restarts == 1
    assert ready(driver) == ("True", Reason.GENERATED)


def test_a_file_that_somebody_edited_is_put_back_without_a_restart() -> None:
    driver = settled()
    unit = driver.box.units[UNIT]
    assert unit.file is not None
    unit.file = unit.loaded = unit.file.replace("/models/m", "/models/other")
    plan = driver.turn()
    assert [type(a) for a in plan.actions] == [PutUnit]
    assert driver.settle().actions == ()
    assert driver.box.restarts == 0


def test_a_template_of_an_earlier_version_changes_nothing() -> None:
    driver = settled()
    unit, record = driver.box.units[UNIT], driver.records["m"]
    assert unit.file is not None
    unit.file = unit.loaded = unit.file.replace("TasksMax=infinity", "TasksMax=90%")
    look = driver.box.look(driver.now_s, (UNIT,))
    old = look.unit(UNIT)
    assert isinstance(old, Unit)
    assert old.file is not None
    assert old.file.sha256 is not None
    driver.records["m"] = replace(record, written_sha256=old.file.sha256)
    plan = driver.turn()
    assert plan.actions == ()
    assert plan.drift == ()


@pytest.mark.parametrize("state", ["indirect", "generated", "alias", "transient"])
def test_a_unit_that_cannot_be_enabled_is_not_enabled_again_and_again(state: str) -> None:
    driver = settled()
    look = seen(driver, lambda u: replace(u, unit_file_state=state))
    assert decide(driver.world(look)).actions == ()


@pytest.mark.parametrize("reason", [Reason.STALE_PROCESS_SERVING, Reason.ARGV_MISMATCH, Reason.WRONG_MODEL])
def test_another_process_on_the_port_ends_ready_at_the_first_answer(reason: Reason) -> None:
    driver = settled()
    fact = driver.probes[UNIT]
    driver.records["m"] = replace(driver.records["m"], ready_invocation=fact.invocation)
    driver.probes[UNIT] = replace(fact, ok=False, reason=reason, failures=1)
    assert ready(driver) == ("False", reason)
    driver.probes[UNIT] = replace(fact, ok=False, reason=Reason.GENERATION_TIMEOUT, failures=1)
    assert ready(driver)[0] == "True"


@pytest.mark.parametrize(
    "more", [{"stop": {"timeout": "90s"}}, {"restart": {"delay": "9s"}}, {"restart": {"startLimitBurst": 3}}]
)
def test_what_the_spec_declares_for_systemd_is_written_without_a_restart(more: dict[str, object]) -> None:
    driver = settled()
    driver.specs["m"] = spec(**more)
    assert changes(driver.turn()) == ["PutUnit"]
    assert driver.settle().actions == ()
    assert driver.box.restarts == 0
    assert ready(driver) == ("True", Reason.GENERATED)


def test_a_change_that_a_person_declared_is_not_refused_by_the_budget_after_a_daemon_died_within_it() -> None:
    driver = settled()
    driver.specs["m"] = spec(contextLength=4096)
    driver.turn(1)  # written; then the daemon died
    world = replace(driver.world(), corrections={UNIT: 99})
    assert changes(decide(world)) == ["restart"]
    record = replace(driver.records["m"], started_launch=world.desired[0].launch_hash)
    driver.records["m"] = record
    plan = decide(replace(driver.world(), corrections={UNIT: 99}))
    assert plan.actions == ()
    assert plan.blocked[UNIT].reason is Reason.BUDGET_EXHAUSTED
