"""No start on an unusable card, work that runs left alone, a way back; and what is told before a start fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.actions import UnitVerb
from daemon.domain.health import Ailment, KernelLog, OomKill, Space
from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Condition, Reason
from daemon.journal import with_victims
from daemon.memory import HostMemory
from daemon.planner.conditions import host_conditions
from daemon.planner.plan import Plan, decide
from daemon.planner.world import World
from tests.planner.box import UUIDS, Box
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"
WHY = "Xid 79, the card has fallen off the bus (kernel log)"

pytestmark = pytest.mark.strays


def settled() -> Driver:
    found = Driver(Box(), {"m": spec()})
    found.settle()
    return found


def down(state: str = "inactive") -> Driver:
    found = settled()
    found.box._end(UNIT, found.box.units[UNIT], state)
    return found


def look_of(world: World) -> Observation:
    assert isinstance(world.observation, Observation)
    return world.observation


def with_look(world: World, **more: object) -> World:
    return replace(world, observation=replace(look_of(world), **more))  # type: ignore[arg-type]


def faulty(world: World, uuid: str, reason: Reason = Reason.GPU_LOST) -> World:
    look = look_of(world)
    assert not isinstance(look.gpus, Unknown)
    gpus = tuple(replace(gpu, fault=reason if gpu.uuid == uuid else None) for gpu in look.gpus)
    return with_look(world, gpus=gpus, ailments=(Ailment(uuid, reason, WHY, True),))


def starts(plan: Plan) -> list[str]:
    return [action.verb for action in plan.actions if isinstance(action, UnitVerb) and action.verb != "enable"]


def said(world: World, type_: str = "Degraded") -> Condition:
    return next(c for c in host_conditions(world, decide(world), 1) if c.type == type_)


@pytest.mark.parametrize("state", ["inactive", "failed"])
@pytest.mark.parametrize("reason", [Reason.GPU_LOST, Reason.GPU_NEEDS_RESET, Reason.ECC_UNCORRECTED])
def test_nothing_is_started_on_an_unusable_card_and_why_is_told(state: str, reason: Reason) -> None:
    world = down(state).world()
    assert starts(decide(world)) == ["start"]
    plan = decide(faulty(world, UUIDS[1], reason))
    assert starts(plan) == []
    assert plan.blocked[UNIT].reason is reason
    assert UUIDS[1] in plan.blocked[UNIT].detail
    assert WHY in plan.blocked[UNIT].detail
    ready = said(faulty(world, UUIDS[1], reason), "GPUsReady")
    assert (ready.status, ready.reason) == ("False", reason)
    assert WHY in ready.message


def test_a_card_of_nobody_keeps_nothing_from_its_start() -> None:
    world = down().world()
    assert len(look_of(world).gpus) > 2  # type: ignore[arg-type]
    assert starts(decide(faulty(world, UUIDS[2]))) == ["start"]


def test_what_runs_on_a_card_that_became_unusable_is_left_alone() -> None:
    world = settled().world()
    assert decide(faulty(world, UUIDS[0])).actions == ()
    changed = settled()
    changed.specs = {"m": spec(contextLength=4096)}
    assert "restart" not in starts(decide(faulty(changed.world(), UUIDS[0])))


@pytest.mark.parametrize("reason", [Reason.DRIVER_LIBRARY_MISMATCH, Reason.TOOL_TIMED_OUT])
def test_cards_of_which_nothing_is_known_block_a_start_as_unknown(reason: Reason) -> None:
    """A04."""
    world = with_look(down().world(), gpus=Unknown(reason, "told"))
    assert starts(decide(world)) == []
    assert decide(world).blocked[UNIT].reason is reason
    assert (said(world, "GPUsReady").status, said(world).status) == ("Unknown", "Unknown")


def test_a_warning_keeps_nothing_from_its_start() -> None:
    world = with_look(down().world(), ailments=(Ailment(UUIDS[0], Reason.ROW_REMAP_PENDING, "pending", False),))
    assert starts(decide(world)) == ["start"]


def limited(world: World) -> World:
    """systemd gave up on the unit after too many starts of the declared launch."""
    look = look_of(world)
    assert not isinstance(look.units, Unknown)
    units = tuple(replace(u, result="start-limit-hit") if u.name == UNIT else u for u in look.units)
    return with_look(world, units=units)


def test_a_unit_that_gave_up_on_a_bad_card_is_started_once_more_when_the_card_is_well() -> None:
    bad, well = limited(faulty(down("failed").world(), UUIDS[0])), limited(down("failed").world())
    memory = HostMemory()

    def seen(world: World) -> World:
        look = look_of(world)
        memory.see(look, world.now_s)
        for one in world.desired:
            unit = look.unit(one.unit)
            assert unit is not None
            assert not isinstance(unit, Unknown)
            memory.note_seen(one, unit)
        return replace(world, cleared=frozenset(memory.cleared))

    assert decide(seen(well)).blocked[UNIT].reason is Reason.START_LIMIT_HIT
    assert decide(seen(bad)).blocked[UNIT].reason is Reason.GPU_LOST
    assert decide(seen(bad)).blocked[UNIT].reason is Reason.GPU_LOST
    assert starts(decide(seen(well))) == ["start"]
    memory.cleared.clear()  # as the start does
    assert decide(seen(well)).blocked[UNIT].reason is Reason.START_LIMIT_HIT


def test_cards_that_could_not_be_named_are_well_again_when_they_are_shown() -> None:
    world = limited(down("failed").world())
    memory = HostMemory(known_gpus=tuple(UUIDS))
    memory.see(replace(look_of(world), gpus=Unknown(Reason.GPU_LOST)), 1.0)
    memory.see(look_of(world), 2.0)
    assert set(UUIDS[:2]) <= memory.recovered
    memory.see(replace(look_of(world), gpus=Unknown(Reason.TOOL_TIMED_OUT)), 3.0)
    memory.see(look_of(world), 4.0)
    assert not memory.recovered


def full(path: str, used: int | None = 50, inodes: int | None = 1, free_mib: int = 1000) -> World:
    return with_look(settled().world(), space=(Space(path, used, inodes, free_mib), Space("/", 10, 1, 1000)))


@pytest.mark.parametrize(
    ("world", "reason", "text"),
    [
        (full("/dev/shm", 91), Reason.SHARED_MEMORY_FULL, "/dev/shm is more than 90 % full"),
        (full("/dev/shm", 99), Reason.SHARED_MEMORY_FULL, "/dev/shm is more than 98 % full"),
        (full("/tmp", 100), Reason.DISK_FULL, "/tmp is more than 98 % full"),
        (full("/var/log/journal", 99), Reason.JOURNAL_FULL, "/var/log/journal is more than 98 % full"),
        (full("/tmp", inodes=95), Reason.INODES_FULL, "/tmp has used more than 90 % of its inodes"),
    ],
)  # fmt: skip
def test_a_disk_that_fills_is_told_before_it_stops_a_start(world: World, reason: Reason, text: str) -> None:
    assert said(world) == Condition("Degraded", "True", reason, text, 1)
    assert decide(world).actions == ()


@pytest.mark.parametrize("world", [full("/tmp", 90, 90), full("/tmp", 99, free_mib=30_000), full("/tmp", None, None)])
def test_a_disk_with_room_is_well(world: World) -> None:
    assert said(world) == Condition("Degraded", "False", Reason.OK, "", 1)


def test_figures_that_move_a_little_say_nothing_new() -> None:
    assert said(full("/tmp", 92, free_mib=900)) == said(full("/tmp", 97, free_mib=300))


def test_the_worst_is_told_first_and_everything_is_told() -> None:
    world = faulty(full("/dev/shm", 99), UUIDS[3])
    more = (*look_of(world).ailments, Ailment("", Reason.NVSWITCH_ERROR, "nvidia-nvswitch0: fatal SXid 20034", False))
    found = said(with_look(world, ailments=more))
    assert found.reason is Reason.GPU_LOST
    parts = found.message.split("; ")
    assert parts == [f"GPU 3: {WHY}", "/dev/shm is more than 98 % full", "nvidia-nvswitch0: fatal SXid 20034"]


def test_disks_that_could_not_be_measured_are_not_well() -> None:
    world = with_look(settled().world(), space=Unknown(Reason.TOOL_TIMED_OUT, "stat"))
    assert (said(world).status, said(world).reason) == ("Unknown", Reason.TOOL_TIMED_OUT)


@pytest.mark.parametrize(
    ("kill", "reason"),
    [
        (OomKill(7, "VLLM::Worker_TP", f"/system.slice/{UNIT}", 90.0), Reason.HOST_OOM),
        (OomKill(7, "VLLM::Worker_TP", "/system.slice/other.service", 90.0), Reason.KILLED_BY_SIGNAL),
        (OomKill(7, "VLLM::Worker_TP", f"/system.slice/{UNIT}", -100.0), Reason.KILLED_BY_SIGNAL),
        (OomKill(7, "VLLM::Worker_TP", None, 90.0), Reason.KILLED_BY_SIGNAL),
    ],
)
def test_a_kill_is_for_want_of_memory_only_where_the_kernel_says_so_of_that_unit(kill: OomKill, reason: Reason) -> None:
    """D15."""
    look = look_of(settled().world())
    look = replace(look, identity=replace(look.identity, monotonic_us=100_000_000), kernel=KernelLog(kills=(kill,)))
    text, found = with_victims("its last lines", Reason.KILLED_BY_SIGNAL, look, UNIT)
    assert found is reason
    assert ("pid" in text or "process 7 (VLLM::Worker_TP)" in text) is (reason is Reason.HOST_OOM)
    assert with_victims("x", Reason.MODEL_NOT_FOUND, look, UNIT) == ("x", Reason.MODEL_NOT_FOUND)
    closed = replace(look, kernel=Unknown(Reason.TOOL_FAILED))
    assert with_victims("x", Reason.KILLED_BY_SIGNAL, closed, UNIT) == ("x", Reason.KILLED_BY_SIGNAL)
