"""Who may never be signalled: tries to get somebody else's work killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.actions import Signal
from daemon.domain.observation import Loaded, Unit
from daemon.domain.status import Reason
from daemon.planner.holders import holders_of, ledger_of, tree_ports
from daemon.planner.ownership import Ownership
from daemon.planner.plan import decide
from daemon.planner.world import Record, Retired, StrayFact, Unplaced, World
from tests.planner.box import UUIDS, Box, BoxUnit, Proc
from tests.planner.driving import HOST, Driver, listening, spec

UNIT = "stoker-m.server.service"
EXCLUSIVE = HOST.model_copy(update={"exclusive": True})
MARKS = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
WORKER = ("sglang::scheduler_TP0",)

pytestmark = pytest.mark.main_job


def owner(world: World, proc: Proc) -> Ownership:
    look = world.observation
    holders = holders_of(world, look, ledger_of(world, look))  # type: ignore[arg-type]
    return next(h.ownership for h in holders.all if h.process.id.pid == proc.pid)  # type: ignore[union-attr]


def seen_twice(driver: Driver) -> World:
    """A world in which every process was seen before, and nothing it holds serves."""
    world = driver.world()
    fact = StrayFact(driver.now_s - 5, serves=False, asked_at_s=driver.now_s, ports=listening(world))
    return replace(world, strays=dict.fromkeys(world.strays, fact))


def signals(world: World) -> list[Signal]:
    return [action for action in decide(world).actions if isinstance(action, Signal)]


@pytest.mark.parametrize(
    "cgroup",
    [
        "/lxc/129/ns/system.slice/vllm.service",
        f"/lxc/129/ns/system.slice/{UNIT}",
        "/lxc/129/ns/user.slice/user-0.slice/session-3.scope",
        "/lxc.payload.web/system.slice/vllm.service",
        "/kubepods/burstable/pod1/abc/system.slice/vllm.service",
        "/system.slice/docker-0123abcd.scope",
        "/machine.slice/machine-web.scope/payload/system.slice/vllm.service",
    ],
)
@pytest.mark.parametrize("marks", [(), MARKS])
def test_what_lives_in_a_container_is_foreign_whatever_its_own_units_are_called(
    cgroup: str, marks: tuple[tuple[str, str], ...]
) -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    proc = driver.box.spawn(WORKER, cgroup, gpus={UUIDS[0]: 9000}, marks=marks)
    world = seen_twice(driver)
    look = replace(world.observation, other_units=(("vllm.service", "inactive"), (UNIT, "inactive"),  # type: ignore
                                                   ("docker-0123abcd.scope", "active"),
                                                   ("machine-web.scope", "inactive")))  # fmt: skip
    world = replace(world, observation=look)
    assert owner(world, proc).owner == "foreign"
    assert not signals(world)


@pytest.mark.parametrize("name", ["stoker-m.server.service-x", "stoker-m.server.service2", "xstoker-m.server.service"])
def test_a_cgroup_whose_name_only_begins_or_ends_like_the_unit_is_not_the_unit(name: str) -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    proc = driver.box.spawn(("python3", "x.py"), f"/system.slice/{name}", gpus={UUIDS[0]: 9000})
    assert owner(seen_twice(driver), proc).owner == "foreign"
    assert not signals(seen_twice(driver))


def test_the_time_a_slow_store_takes_after_the_first_look_is_no_second_sighting() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.box.spawn(WORKER, "/gone", gpus={UUIDS[0]: 9000}, marks=MARKS)
    world = driver.world()
    late = replace(world, now_s=world.now_s + 5)  # the look ended at now_s; then the store was locked for five seconds
    assert not signals(late)
    slow = replace(world.observation, at_s=driver.now_s + 0.1)  # type: ignore[type-var]
    assert not signals(replace(late, observation=slow))  # began 0.1 s after the first and took long itself
    assert signals(replace(late, observation=replace(slow, at_s=driver.now_s + 0.6)))


def test_a_look_older_than_half_a_minute_signals_nobody() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.box.spawn(WORKER, "/gone", gpus={UUIDS[0]: 9000}, marks=MARKS)
    world = seen_twice(driver)
    assert signals(world)
    assert not signals(replace(world, now_s=world.now_s + 31))


def hand_started(driver: Driver) -> tuple[Proc, Proc]:
    """A server started by hand with nohup: its launcher listens, its worker is in a group of its own."""
    launcher = driver.box.spawn(
        ("python3", "-m", "sglang.launch_server", "--port", "9000"), "/user.slice/user-0.slice/session-9.scope",
        ports=(9000,),
    )  # fmt: skip
    worker = driver.box.spawn(WORKER, launcher.cgroup, ppid=launcher.pid, gpus={UUIDS[0]: 9000})
    return launcher, worker


def test_the_worker_of_a_serving_launcher_is_asked_about_by_the_launchers_port() -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    _, worker = hand_started(driver)
    world = driver.world()
    process = next(p for p in world.observation.processes if p.id.pid == worker.pid)  # type: ignore[union-attr]
    assert tree_ports(process, world.observation) == (9000,)  # type: ignore[arg-type]
    world = replace(world, strays={i: StrayFact(driver.now_s - 5) for i in world.strays})
    assert owner(world, worker).owner == "unknown"
    assert not signals(world)
    assert [question.ports for question in decide(world).questions] == [(9000,)]


@pytest.mark.strays
@pytest.mark.parametrize("marks", [(), MARKS])
def test_of_a_tree_whose_launcher_was_not_seen_nobody_knows_whether_it_serves(
    marks: tuple[tuple[str, str], ...],
) -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    launcher, worker = hand_started(driver)
    worker.marks = marks
    seen = driver.world()
    world = replace(seen, strays={i: StrayFact(driver.now_s - 5) for i in seen.strays})
    rest = tuple(p for p in world.observation.processes if p.id.pid != launcher.pid)  # type: ignore[union-attr]
    cut = replace(world.observation, processes=rest)  # type: ignore[type-var]
    process = next(p for p in rest if p.id.pid == worker.pid)
    assert tree_ports(process, cut) is None  # type: ignore[arg-type]
    assert owner(replace(world, observation=cut), worker).owner == "unknown"
    assert not signals(replace(world, observation=cut))


def test_a_shell_in_between_ends_the_tree() -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    shell = driver.box.spawn(("bash",), "/user.slice/user-0.slice/session-9.scope", ports=(22,))
    worker = driver.box.spawn(WORKER, shell.cgroup, ppid=shell.pid, gpus={UUIDS[0]: 9000})
    look = driver.world().observation
    process = next(p for p in look.processes if p.id.pid == worker.pid)  # type: ignore[union-attr]
    assert tree_ports(process, look) == ()  # type: ignore[arg-type]


def moved_worker(driver: Driver) -> Proc:
    """A worker of the live unit that left its cgroup and holds a card."""
    return driver.box.spawn(WORKER, "/moved", gpus={UUIDS[0]: 20_000}, marks=MARKS)


def test_a_moved_worker_of_a_unit_that_cannot_be_placed_now_is_not_an_orphan() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    worker = moved_worker(driver)
    driver.specs["n"] = spec("n", gpus=(0,), port=30002)
    world = seen_twice(driver)
    mine = next(d for d in world.desired if d.unit == UNIT)
    rest = tuple(d for d in world.desired if d.unit != UNIT)
    world = replace(
        world, desired=rest, unplaced=(Unplaced(mine.declared, UNIT, Reason.GPU_MISSING, "the host has no GPU 9"),)
    )
    assert owner(world, worker).owner == "foreign"
    assert not signals(world)


def test_a_moved_worker_of_an_unclaimed_unit_is_not_an_orphan() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    worker = moved_worker(driver)
    driver.specs = {"n": spec("n", gpus=(0,), port=30002)}  # this store is older than the spec m
    world = seen_twice(driver)
    assert decide(world).unclaimed == (UNIT,)
    assert owner(world, worker).owner == "foreign"
    assert not signals(world)


def test_a_marked_process_of_a_spec_whose_deletion_ended_is_an_orphan_still() -> None:
    driver = Driver(Box(), {"n": spec("n", gpus=(0,), port=30002)})
    worker = moved_worker(driver)
    assert owner(seen_twice(driver), worker).owner == "orphan-proven"
    assert [action.targets[0].pid for action in signals(seen_twice(driver))] == [worker.pid]


@pytest.mark.parametrize(
    ("user", "uid", "is_orphan"), [("serve", 1001, False), ("1001", 1001, True), ("0", 1001, False), ("", 1001, False)]
)
def test_a_marked_process_of_another_user_than_the_units_is_foreign(user: str, uid: int, is_orphan: bool) -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.box.units[UNIT] = BoxUnit()
    proc = driver.box.spawn(WORKER, "/gone", uid=uid, gpus={UUIDS[0]: 9000}, marks=MARKS)
    world = seen_twice(driver)
    units = tuple(
        replace(u, loaded=Loaded((), (), user, "")) if u.name == UNIT else u
        for u in world.observation.units  # type: ignore[union-attr]
        if isinstance(u, Unit)
    )
    world = replace(world, observation=replace(world.observation, units=units))  # type: ignore[type-var]
    assert owner(world, proc).orphan is is_orphan
    assert bool(signals(world)) is is_orphan


@pytest.mark.parametrize("active", ["active", "activating", "deactivating", "reloading"])
def test_nothing_in_the_cgroup_of_a_retired_unit_that_lives_or_stops_is_signalled(active: str) -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    record = driver.records["m"]
    assert isinstance(record, Record)
    driver.delete("m")
    driver.retired["m"] = Retired("m", "uid-m", record)
    driver.box.units[UNIT].active = active
    driver.box.units[UNIT].exit_ticks = driver.box.ticks - 100 if active != "active" else 1
    assert not signals(seen_twice(driver))


@pytest.mark.parametrize(("role", "is_orphan"), [("decode", True), ("prefill", False)])
def test_a_launch_tells_the_roles_of_one_spec_apart(role: str, is_orphan: bool) -> None:
    """prefill lives, decode is down: a moved worker of the one is at work, of the other it is an orphan."""
    driver = Driver(Box(), {"m": spec(gpus=(0,)), "n": spec("n", gpus=(1,), port=30002)})
    driver.settle()
    decode = "stoker-n.server.service"
    driver.box._end(decode, driver.box.units[decode], "inactive")
    world = driver.world()
    desired = tuple(replace(d, declared=replace(d.declared, spec_uid="uid-m")) for d in world.desired)
    hashes = {"prefill": desired[0].launch_hash, "decode": desired[1].launch_hash}
    marks = (("STOKER_LAUNCH", hashes[role]), *MARKS)
    worker = driver.box.spawn(WORKER, "/moved", gpus={UUIDS[1]: 20_000}, marks=marks)
    world = replace(seen_twice(driver), desired=desired)
    assert owner(world, worker).orphan is is_orphan
    assert bool(signals(world)) is is_orphan


def test_a_unit_that_a_person_wrote_anew_after_the_deletion_is_left_alone() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    driver.delete("m")
    unit = driver.box.units[UNIT]
    unit.file = unit.loaded = "[Service]\nExecStart=/opt/mine/serve --port 30001\n"
    plan = driver.turn()
    assert plan.actions == ()
    assert [retired.spec_name for retired in plan.finished] == ["m"]
    assert unit.active == "active"


def test_a_unit_that_another_spec_has_taken_over_is_not_stopped_for_the_one_before() -> None:
    """A spec left that unit's name to another, which was declared before the first one was done with it."""
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    before = replace(driver.records["m"], written_sha256="0" * 64)
    driver.retired["old"] = Retired("old", "uid-old", before)
    plan = driver.turn()
    assert [retired.spec_name for retired in plan.finished] == ["old"]
    assert not plan.actions
    assert driver.serves("m")


def test_a_unit_of_ours_that_somebody_only_edited_goes_with_its_spec() -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    driver.delete("m")
    unit = driver.box.units[UNIT]
    assert unit.file is not None
    unit.file = unit.loaded = unit.file.replace("Restart=always", "Restart=no")
    driver.settle()
    assert UNIT not in driver.box.units


def in_container(world: World, shift: int | None) -> World:
    """The same look out of a container whose driver shows pids shifted so far; None: no rows."""
    look = world.observation
    apps = () if shift is None else tuple(replace(app, pid=app.pid + shift) for app in look.apps)  # type: ignore
    identity = replace(look.identity, container="lxc")  # type: ignore[union-attr]
    return replace(world, observation=replace(look, identity=identity, apps=apps))  # type: ignore[type-var]


@pytest.mark.parametrize("container", [False, True])
def test_a_pid_of_another_namespace_is_not_the_process_here_with_the_same_number(container: bool) -> None:
    """On a host a row of a dead process does not spoil the others: there a likely orphan is what its row says."""
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    for _ in range(8):
        driver.turn()
    named = driver.box.spawn(WORKER, "/..", gpus={UUIDS[3]: 9000}, ppid=1)
    world = in_container(seen_twice(driver), named.pid - driver.box.units[UNIT].main)
    if not container:
        identity = replace(world.observation.identity, container="none")  # type: ignore[union-attr]
        world = replace(world, observation=replace(world.observation, identity=identity))  # type: ignore[type-var]
    assert [target.pid for signal in signals(world) for target in signal.targets] == ([] if container else [named.pid])


@pytest.mark.parametrize("shift", [1_000_000, None])
def test_in_a_container_an_orphan_is_told_by_our_mark_and_nobody_else_is_touched(shift: int | None) -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    orphan = driver.box.spawn(WORKER, "/stray", gpus={UUIDS[0]: 9000}, marks=MARKS)
    driver.box.spawn(WORKER, "/stray", gpus={UUIDS[0]: 9000})
    driver.box.spawn(WORKER, "/stray", gpus={UUIDS[3]: 9000}, marks=(MARKS[0], ("STOKER_STORE", "another")))
    world = in_container(seen_twice(driver), shift)
    assert [target.pid for signal in signals(world) for target in signal.targets] == [orphan.pid]


def test_in_a_container_an_orphan_of_a_unit_that_is_bound_to_free_cards_only_is_left() -> None:
    driver = Driver(Box(), {"m": spec()}, host=EXCLUSIVE)
    driver.box.spawn(WORKER, "/stray", gpus={UUIDS[3]: 9000}, marks=MARKS)
    assert not signals(in_container(seen_twice(driver), 1_000_000))


@pytest.mark.parametrize("shift", [1_000_000, None])
def test_in_a_container_what_left_the_cgroup_of_a_deleted_spec_is_told_by_our_mark_as_well(shift: int | None) -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    worker = driver.box.spawn(WORKER, "/moved", gpus={UUIDS[0]: 20_000}, marks=MARKS)
    driver.box.spawn(WORKER, "/theirs", gpus={UUIDS[0]: 20_000})
    driver.box._end(UNIT, driver.box.units[UNIT], "inactive")
    driver.delete("m")
    world = in_container(seen_twice(driver), shift)
    assert [target.pid for signal in signals(world) for target in signal.targets] == [worker.pid]


@pytest.mark.parametrize("limit", ["orphans", "report"])
def test_what_left_the_cgroup_of_a_deleted_spec_is_cleared_before_the_deletion_ends(limit: str) -> None:
    driver = Driver(Box(), {"m": spec()})
    driver.settle()
    worker = driver.box.spawn(WORKER, "/moved", gpus={UUIDS[0]: 20_000}, marks=MARKS)
    stranger = driver.box.spawn(WORKER, "/theirs", gpus={UUIDS[0]: 20_000})
    driver.host = HOST.model_copy(update={"strays": HOST.strays.model_copy(update={"limit": limit})})
    driver.delete("m")
    driver.settle()
    assert (worker.pid in driver.box.procs) is (limit == "report")
    assert stranger.pid in driver.box.procs
    assert not driver.retired


def test_a_holder_of_a_card_that_is_not_shown_is_told_by_the_cards_own_name() -> None:
    driver = Driver(Box(), {"m": spec()})
    proc = driver.box.spawn(("python3", "x.py"), "/system.slice/t.service", gpus={"MIG-1234": 9000})
    world = driver.world()
    holders = holders_of(world, world.observation, ledger_of(world, world.observation))  # type: ignore[arg-type]
    told = next(h for h in holders.all if h.process.id.pid == proc.pid).describe()  # type: ignore[union-attr]
    assert "holds GPU MIG-1234: " in told
