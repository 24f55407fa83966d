"""What is said of a spec and a host: the worst instance speaks, a reason is never lost, an unknown is never a No."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, Unit, UnitFile, Unknown
from daemon.domain.status import Condition, Drift, Reason, Truth
from daemon.planner.conditions import host_conditions, observed_generation, spec_conditions
from daemon.planner.plan import decide
from daemon.planner.states import InstanceState, retired_state, unplaced_state
from daemon.planner.world import Record, Retired, Unplaced, World
from tests.planner.box import Box
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"
GOOD = InstanceState(UNIT, "server", "a", 3, "True", Reason.GENERATED, "", "True", "True", "i" * 32, 1001, "active/run")

pytestmark = pytest.mark.main_job


def of(states: Sequence[InstanceState], *, deleting: bool = False) -> dict[str, Condition]:
    return {c.type: c for c in spec_conditions(3, states, deleting=deleting)}


def state(ready: Truth, reason: Reason, **more: object) -> InstanceState:
    changed = replace(GOOD, ready=ready, reason=reason, message="told", available="False", loaded="False")
    return replace(changed, **more)  # type: ignore[arg-type]


def host(world: World) -> dict[str, Condition]:
    return {c.type: c for c in host_conditions(world, decide(world), 2)}


def settled() -> World:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    return driver.world()


def with_gpus(world: World, **more: object) -> World:
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.gpus, tuple)
    first, *rest = look.gpus
    return replace(world, observation=replace(look, gpus=(replace(first, **more), *rest)))  # type: ignore[arg-type]


def test_every_condition_carries_the_generation_that_it_was_computed_for() -> None:
    """G07."""
    assert {c.observed_generation for c in of([GOOD]).values()} == {3}
    assert {c.observed_generation for c in host(settled()).values()} == {2}


def test_the_worst_instance_speaks_for_the_spec() -> None:
    bad = state("False", Reason.FOREIGN_HOLDER, unit="stoker-m.decode.service", role="decode")
    unsure = state("Unknown", Reason.CONNECT_TIMEOUT)
    for states in ([GOOD, unsure, bad], [bad, GOOD, unsure]):
        assert (of(states)["Ready"].status, of(states)["Ready"].reason) == ("False", Reason.FOREIGN_HOLDER)
    assert (of([GOOD, unsure])["Ready"].status, of([GOOD, unsure])["Ready"].reason) == (
        "Unknown",
        Reason.CONNECT_TIMEOUT,
    )
    assert of([GOOD, GOOD])["Ready"].status == "True"


def test_a_spec_that_was_looked_at_nowhere_is_unknown() -> None:
    said = of([])
    assert {said[t].status for t in ("Ready", "Available", "Loaded", "Drifted")} == {"Unknown"}


@pytest.mark.parametrize(
    "reason",
    [
        Reason.START_LIMIT_HIT,
        Reason.INVALID_LAUNCH_ARGS,
        Reason.UNIT_BAD_SETTING,
        Reason.UNIT_MASKED,
        Reason.GPU_MISSING,
    ],
)
def test_what_no_further_look_mends_is_stalled_and_does_not_progress(reason: Reason) -> None:
    """D02, D12, D23: a person has to act."""
    said = of([GOOD, state("False", reason)])
    assert (said["Stalled"].status, said["Stalled"].reason) == ("True", reason)
    assert said["Stalled"].message == "told"
    assert said["Progressing"].status == "False"


@pytest.mark.parametrize("reason", [Reason.UNKILLABLE_PROCESS, Reason.STRAY_UNDER_MPS, Reason.FOREIGN_HOLDER])
def test_a_start_that_waits_for_a_person_is_not_called_progress(reason: Reason) -> None:
    """B07, B15."""
    assert of([state("False", reason)])["Progressing"].status == "False"


@pytest.mark.parametrize("reason", [Reason.STARTING, Reason.WAITING_FOR_MEMORY, Reason.WAITING_IN_GATE])
def test_what_comes_by_itself_is_progress(reason: Reason) -> None:
    """B17."""
    assert of([state("False", reason)])["Progressing"].status == "True"


def test_drift_is_counted_and_the_first_is_told() -> None:
    """D21."""
    drift = Drift(UNIT, "running", "argv", "--tp-size 8", "--tp-size 4", launch=True)
    said = of([replace(GOOD, drift=(drift,))])["Drifted"]
    assert (said.status, said.reason) == ("True", Reason.UNIT_DRIFT)
    assert "--tp-size 4 instead of --tp-size 8" in said.message
    assert said.message.startswith("1 field: running argv")
    assert of([replace(GOOD, drift=(drift, drift))])["Drifted"].message.startswith("2 fields, the first: running argv")
    assert of([GOOD])["Drifted"].status == "False"


def test_drift_of_a_unit_that_was_not_seen_is_unknown() -> None:
    """G09."""
    assert of([state("Unknown", Reason.CONNECT_TIMEOUT, active="")])["Drifted"].status == "Unknown"


def test_a_deletion_whose_host_is_gone_says_so_and_one_that_goes_on_is_terminating() -> None:
    """G11."""
    world = settled()
    retired = Retired("m", "uid-m", Record(UNIT, f"/etc/systemd/system/{UNIT}"))
    gone = retired_state(retired, GOOD, replace(world, observation=Unknown(Reason.CONNECT_TIMEOUT, "refused")))
    said = of([gone], deleting=True)["Ready"]
    assert (said.status, said.reason) == ("False", Reason.HOST_UNREACHABLE)
    assert "CONNECT" in said.message.upper()
    going = retired_state(retired, GOOD, world)
    assert of([going], deleting=True)["Ready"].reason is Reason.TERMINATING
    paused = retired_state(retired, GOOD, replace(world, withheld=Reason.PAUSED))
    assert of([paused], deleting=True)["Ready"].reason is Reason.PAUSED


@pytest.mark.parametrize("adopted", [False, True])
def test_a_deletion_waits_for_a_masked_unit_to_be_unmasked_and_says_so(adopted: bool) -> None:
    world = settled()
    folder = "/etc/systemd/system"
    path = f"{folder}/{UNIT}.d/50-stoker.conf" if adopted else f"{folder}/{UNIT}"
    retired = Retired("m", "uid-m", Record(UNIT, path))
    look = world.observation
    assert isinstance(look, Observation)
    unit = look.unit(UNIT)
    assert isinstance(unit, Unit)
    file = UnitFile(path, text=None, sha256=None, link=not adopted)
    hidden = replace(unit, load_state="masked", active_state="inactive", file=file, main_pid=0, main=None)
    look = replace(look, units=(hidden,), processes=())
    plan = decide(replace(world, observation=look, desired=(), retired=(retired,)))
    assert bool(plan.finished) is adopted
    said = retired_state(retired, GOOD, replace(world, observation=look))
    assert said.reason is (Reason.TERMINATING if adopted else Reason.UNIT_MASKED)


def test_an_instance_that_cannot_be_placed_is_no_only_when_the_host_was_seen() -> None:
    world = settled()
    unplaced = Unplaced(world.desired[0].declared, UNIT, Reason.GPU_MISSING, "the host has no GPU 9")
    assert unplaced_state(unplaced, world).ready == "False"
    away = replace(world, observation=Unknown(Reason.CONNECT_TIMEOUT))
    assert unplaced_state(unplaced, away).ready == "Unknown"


def test_a_settled_host_is_well() -> None:
    found = host(settled())
    assert {type_ for type_, c in found.items() if c.status != "True"} == {"Degraded"}
    assert found["Degraded"].status == "False"


@pytest.mark.parametrize(
    ("reason", "truth"),
    [
        (Reason.GPU_LOST, "False"),
        (Reason.DEVICE_HANDLE_ERROR, "False"),
        (Reason.DRIVER_NOT_LOADED, "False"),
        (Reason.DRIVER_LIBRARY_MISMATCH, "Unknown"),
        (Reason.TOOL_MISSING, "Unknown"),
        (Reason.TOOL_TIMED_OUT, "Unknown"),
    ],
)
def test_gpus_that_did_not_answer_are_told_apart_from_gpus_that_are_gone(reason: Reason, truth: Truth) -> None:
    """A04, A07, A24, F12: and nothing that serves is touched for it."""
    world = settled()
    look = cast(Observation, world.observation)
    world = replace(world, observation=replace(look, gpus=Unknown(reason, "told")))
    assert (host(world)["GPUsReady"].status, host(world)["GPUsReady"].reason) == (truth, reason)
    assert not decide(world).actions


def test_a_faulty_a_missing_and_a_moved_card_are_three_reasons() -> None:
    """A08: nothing that serves is touched for it."""
    world = settled()
    faulty = with_gpus(world, fault=Reason.GPU_NEEDS_RESET)
    moved = with_gpus(world, uuid="GPU-other")
    few = replace(world, host=HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "gpus": {"count": 8}}))
    for one, reason in (
        (faulty, Reason.GPU_NEEDS_RESET), (moved, Reason.GPU_BINDING_CHANGED), (few, Reason.GPU_MISSING)
    ):  # fmt: skip
        assert (host(one)["GPUsReady"].status, host(one)["GPUsReady"].reason) == ("False", reason)
        assert not decide(one).actions


@pytest.mark.parametrize("section", ["processes", "listeners", "units", "apps"])
def test_an_unknown_section_never_reads_as_clean(section: str) -> None:
    world = settled()
    look = replace(cast(Observation, world.observation), **{section: Unknown(Reason.TRUNCATED)})  # type: ignore[arg-type]
    assert host(replace(world, observation=look))["Clean"].status == "Unknown"


def test_conditions_speak_of_the_oldest_generation_that_an_instance_was_judged_by() -> None:
    """A spec may change between the decision of a pass and its status: Ready then speaks of what was decided on."""
    assert observed_generation(4, [GOOD]) == 3
    assert observed_generation(3, [GOOD]) == 3
    assert observed_generation(4, [replace(GOOD, generation=4), state("False", Reason.INVALID_LAUNCH_ARGS)]) == 3
    assert observed_generation(4, []) == 4


def test_an_instance_that_is_taken_away_does_not_hold_back_the_generation_that_takes_it_away() -> None:
    retired = Retired("m", "uid-m", Record(UNIT, f"/etc/systemd/system/{UNIT}"), generation=4)
    for look in (settled(), replace(settled(), observation=Unknown(Reason.CONNECT_TIMEOUT, "refused"))):
        assert observed_generation(4, [retired_state(retired, GOOD, look)]) == 4
