"""Situations that GPU hosts are known to get into, each by its case id, against one decision or a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from daemon.domain.actions import PutUnit, Signal, UnitVerb
from daemon.domain.observation import Environment, Listener, Observation, Process, ProcessId, Unit, Unknown
from daemon.domain.status import Condition, Reason
from daemon.engines.unit import parse_unit
from daemon.memory import HostMemory
from daemon.planner.cards import Card
from daemon.planner.conditions import host_conditions
from daemon.planner.desired import place
from daemon.planner.drift import running_drift
from daemon.planner.plan import Plan, decide
from daemon.planner.states import InstanceState, instance_state
from daemon.planner.world import Declared, Desired, StrayFact, World
from tests.planner.box import UUIDS, Box, Proc
from tests.planner.driving import HOST, Driver, listening, spec

UNIT = "stoker-m.server.service"
GROUP = f"/system.slice/{UNIT}"
MARKS = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
EXCLUSIVE = HOST.model_copy(update={"exclusive": True})
ENGINE = ("VLLM::EngineCore",)

pytestmark = pytest.mark.main_job


def driver(*, exclusive: bool = False, **more: object) -> Driver:
    return Driver(Box(), {"m": spec(**more)}, host=EXCLUSIVE if exclusive else HOST)  # type: ignore[arg-type]


def settled(**more: object) -> Driver:
    found = driver(**more)  # type: ignore[arg-type]
    found.settle()
    return found


def down(state: str = "failed", **more: object) -> Driver:
    """A server that ran and whose unit is down now, with nothing left of it."""
    found = settled(**more)
    unit = found.box.units[UNIT]
    found.box._end(UNIT, unit, state)
    return found


def known(world: World) -> World:
    """Every process was seen before, and no port of any serves."""
    fact = StrayFact(world.now_s - 5, serves=False, asked_at_s=world.now_s, ports=listening(world))
    return replace(world, strays=dict.fromkeys(world.strays, fact))


def look_of(world: World) -> Observation:
    assert isinstance(world.observation, Observation)
    return world.observation


def seen(world: World, change: Callable[[Unit], Unit]) -> World:
    look = look_of(world)
    assert isinstance(look.units, tuple)
    units = tuple(change(unit) if unit.name == UNIT else unit for unit in look.units)
    return replace(world, observation=replace(look, units=units))


def processes(world: World, change: Callable[[Process], Process]) -> World:
    look = look_of(world)
    assert isinstance(look.processes, tuple)
    return replace(world, observation=replace(look, processes=tuple(change(p) for p in look.processes)))


def signalled(plan: Plan, name: str = "TERM") -> list[int]:
    return [t.pid for a in plan.actions if isinstance(a, Signal) and a.signal == name for t in a.targets]


def verbs(plan: Plan) -> list[str]:
    return [a.verb for a in plan.actions if isinstance(a, UnitVerb)]


def said(world: World, type_: str) -> Condition:
    return next(c for c in host_conditions(world, decide(world), 1) if c.type == type_)


def clean(world: World) -> tuple[str, Reason]:
    found = said(world, "Clean")
    return found.status, found.reason


def state(world: World) -> InstanceState:
    return instance_state(world.desired[0], decide(world), world)


def vllm_tree(box: Box, cgroup: str, ppid: int = 1, **more: object) -> list[Proc]:
    core = box.spawn(ENGINE, cgroup, ppid=ppid, gpus={UUIDS[0]: 300, UUIDS[1]: 300}, **more)
    workers = [
        box.spawn((f"VLLM::Worker_TP{i}",), cgroup, ppid=core.pid, gpus={UUIDS[i]: 60_000}, **more) for i in (0, 1)
    ]
    return [core, *workers]


# B: processes, and who holds what


def test_engine_and_workers_that_outlive_their_server_are_cleared_whoever_their_parent_is() -> None:
    """B01: the new parent is a living launcher; found by what they hold, ended, and only then is it started."""
    d = down("inactive")
    launcher = d.box.spawn(("/usr/bin/supervisor",), "/system.slice/supervisor.service", truth="foreign")
    tree = vllm_tree(d.box, GROUP, launcher.pid, truth="orphan")
    first = d.turn()
    assert not first.actions
    assert first.blocked[UNIT].reason is Reason.ORPHAN_WORKERS
    second = d.turn()
    assert signalled(second) == [tree[0].pid]  # the engine first, then what it leaves
    assert not verbs(second)
    assert signalled(d.turn()) == [p.pid for p in tree[1:]]
    d.settle()
    assert d.serves("m")
    assert all(truth == "orphan" for _, truth in d.box.signalled)


def test_what_ignores_term_is_killed_after_its_grace_and_only_then_is_the_unit_started() -> None:
    """B01."""
    d = down("inactive")
    left = d.box.spawn(ENGINE, GROUP, gpus={UUIDS[0]: 60_000}, stubborn=True, truth="orphan")
    plans: list[Plan] = []
    while left.pid in d.box.procs and len(plans) < 60:
        plans.append(d.turn())
    assert [signalled(plan, "KILL") for plan in plans if signalled(plan, "KILL")] == [[left.pid]]
    assert len([plan for plan in plans if signalled(plan)]) == 1
    assert not any("start" in verbs(plan) for plan in plans)
    d.settle()
    assert d.serves("m")


def test_nothing_starts_beside_an_engine_that_still_compiles_after_its_server_gave_up() -> None:
    """B03: failed with exit-code; EngineCore under PID 1, its worker under it."""
    d = down("failed")
    tree = vllm_tree(d.box, GROUP)
    plan = decide(known(d.world()))
    assert signalled(plan) == [tree[0].pid]
    assert not verbs(plan)


def test_the_kill_set_is_the_proven_holder_and_nothing_above_or_beside_it() -> None:
    """B04: not its parent, not its siblings, not the supervisor."""
    d = down()
    home = "/system.slice/supervisor.service"
    supervisor = d.box.spawn(("/usr/bin/supervisor",), home)
    d.box.spawn(("trtllm-serve",), home, ppid=supervisor.pid, state="Z")
    orted = d.box.spawn(("orted",), home, ppid=supervisor.pid)
    d.box.spawn(("python", "unrelated.py"), home, ppid=orted.pid)
    worker = d.box.spawn(("python", "worker.py"), "/gone", ppid=orted.pid, gpus={UUIDS[0]: 9000}, marks=MARKS)
    assert signalled(decide(known(d.world()))) == [worker.pid]


def test_a_stray_is_found_though_the_kernel_keeps_fifteen_letters_of_its_title() -> None:
    """B05: no python anywhere in its name."""
    d = driver(exclusive=True)
    stray = d.box.spawn(ENGINE, "/gone", gpus={UUIDS[0]: 114_000})
    d.turn()
    world = processes(known(d.world()), lambda p: replace(p, comm="VLLM::EngineCor"))
    assert signalled(decide(world)) == [stray.pid]


@pytest.mark.parametrize("comm", ["nvidia-persistenced", "nvidia-cuda-mps-control", "systemd-journald"])
def test_a_protected_process_is_known_by_its_cut_kernel_name(comm: str) -> None:
    """B05: comm is never compared with a full name."""
    d = down()
    d.box.spawn(("retitled",), GROUP, gpus={UUIDS[0]: 300})
    world = processes(known(d.world()), lambda p: replace(p, comm=comm[:15]))
    assert not signalled(decide(world))


def test_what_survives_kill_is_signalled_no_more_and_told() -> None:
    """B07: in state D; the unit is not started, a person has to reboot."""
    d = down()
    left = d.box.spawn(ENGINE, GROUP, gpus={UUIDS[0]: 9000}, state="D")
    world = d.world()
    fact = StrayFact(world.now_s - 60, term_at_s=world.now_s - 40, kill_at_s=world.now_s - 20)
    world = replace(world, strays={i: fact for i in world.strays})
    plan = decide(world)
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.UNKILLABLE_PROCESS
    assert clean(world) == ("False", Reason.UNKILLABLE_PROCESS)
    text = said(world, "Clean").message
    assert str(left.pid) in text
    assert "state D" in text
    assert "reboot" in text


def test_a_defunct_process_is_never_signalled_and_its_parent_is_named() -> None:
    """B07: Z cannot be killed; whoever started it must reap it."""
    d = down()
    d.box.spawn((), GROUP, gpus={UUIDS[0]: 9000}, state="Z", ppid=3590)
    plan = decide(known(d.world()))
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.DEFUNCT_PROCESS
    assert "3590" in plan.blocked[UNIT].detail


def test_a_defunct_process_that_holds_no_card_keeps_nothing_from_starting() -> None:
    """B07: its parent may live for ever, and is not ours to end."""
    d = down()
    d.box.spawn((), GROUP, state="Z", ppid=3590)
    plan = decide(known(d.world()))
    assert [getattr(action, "verb", "") for action in plan.actions] == ["start"]


def loose(look: Observation, since: dict[str, float], mib: int) -> dict[str, Card]:
    """That memory is in use since then, and that nobody explains it."""
    return {
        uuid: Card(look.identity.boot_id, "580.159.04", seen_at_s=at_s, loose_since_s=at_s, low_mib=mib)
        for uuid, at_s in since.items()
    }


def with_memory(d: Driver, since_s: float, mib: int = 21_877) -> World:
    """GPU 1 shows memory, and the driver names nobody, since that long."""
    world = d.world()
    look = look_of(world)
    assert isinstance(look.gpus, tuple)
    gpus = tuple(replace(g, memory_used_mib=mib) if g.index == 1 else g for g in look.gpus)
    return replace(
        world, observation=replace(look, gpus=gpus), cards=loose(look, {UUIDS[1]: world.now_s - since_s}, mib)
    )


def test_memory_that_nobody_seen_holds_is_not_called_clean() -> None:
    """B09: another tool sees a zombie, nvidia-smi lists none."""
    d = down()
    d.box.spawn((), "/gone", state="Z")
    world = with_memory(d, 600)
    assert clean(world) == ("False", Reason.UNATTRIBUTED_GPU_MEMORY)
    assert "GPU 1" in said(world, "Clean").message
    assert not signalled(decide(world))


def test_memory_of_a_running_instance_is_its_own_though_the_driver_names_no_process() -> None:
    """B09: in a container the driver names nobody, or pids of another namespace (A20)."""
    d = settled()
    look = look_of(d.world())
    inside = replace(look, apps=(), identity=replace(look.identity, container="lxc"))
    assert clean(d.world(inside)) == ("True", Reason.CLEAN)
    assert isinstance(look.apps, tuple)
    far = tuple(replace(app, pid=app.pid + 100_000) for app in look.apps)
    assert clean(d.world(replace(inside, apps=far))) == ("True", Reason.CLEAN)
    assert clean(d.world(replace(look, apps=far))) == ("False", Reason.GHOST_GPU_PROCESS)


def test_of_all_pythons_only_the_engine_on_our_card_is_a_candidate() -> None:
    """B14: never by interpreter."""
    d = driver(exclusive=True)
    d.box.spawn(("/usr/bin/python3", "/usr/bin/unattended-upgrade"), "/gone", truth="foreign")
    d.box.spawn(("python3", "/opt/monitoring/agent.py"), "/gone", truth="foreign")
    argv = ("/opt/venv/bin/python3", "-m", "sglang.launch_server", "--port", "30000")
    engine = d.box.spawn(argv, "/gone", gpus={UUIDS[0]: 9000})
    for _ in range(4):
        d.turn()
    assert engine.pid not in d.box.procs
    assert [truth for _, truth in d.box.signalled] == ["engine"]


@pytest.mark.parametrize("listed", [True, False])
def test_no_client_is_killed_while_cuda_mps_runs(listed: bool) -> None:
    """B15: whether or not the driver lists the server itself."""
    d = down()
    server = d.box.spawn(("/usr/bin/nvidia-cuda-mps-server",), "/gone", gpus={UUIDS[0]: 30} if listed else {})
    left = d.box.spawn(ENGINE, GROUP, gpus={UUIDS[0]: 20_110})
    world = known(d.world())
    assert not decide(world).actions
    assert clean(world) == ("False", Reason.STRAY_UNDER_MPS)
    assert decide(world).blocked[UNIT].reason is Reason.STRAY_UNDER_MPS
    del d.box.procs[server.pid]
    assert signalled(decide(known(d.world()))) == [left.pid]


def test_the_mps_server_itself_is_in_nobodys_way() -> None:
    """B15: it is never a stray; its few MiB on our card are how clients share it."""
    d = driver(exclusive=True)
    d.box.spawn(("/usr/bin/nvidia-cuda-mps-server",), "/gone", gpus={UUIDS[0]: 30})
    assert verbs(d.turn()) == ["enable", "start"]
    world = known(d.world())
    assert not signalled(decide(world))
    assert clean(world) == ("True", Reason.CLEAN)


def test_a_detached_engine_without_our_mark_is_reported_on_a_shared_host_and_cleared_on_an_exclusive_one() -> None:
    """B16."""
    shared, own = driver(), driver(exclusive=True)
    for d in (shared, own):
        vllm_tree(d.box, "/gone")
        d.turn()
    plan = decide(known(shared.world()))
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.ORPHAN_WORKERS
    assert "not exclusive" in plan.blocked[UNIT].detail
    assert len(signalled(decide(known(own.world())))) == 1
    own.settle()
    assert own.serves("m")


def test_a_detached_engine_of_another_user_is_never_ours() -> None:
    """B16."""
    d = settled(exclusive=True)
    d.box.spawn(ENGINE, "/gone", uid=1000, gpus={UUIDS[0]: 9000})
    world = known(d.world())
    assert not signalled(decide(world))
    assert clean(world) == ("False", Reason.FOREIGN_HOLDER)


def test_a_start_waits_for_memory_that_comes_back_later_than_the_process_goes() -> None:
    """B17: and nobody is searched for meanwhile."""
    d = down("inactive")
    world = with_memory(d, 2, 98_304)
    plan = decide(world)
    assert "start" not in verbs(plan)
    assert plan.blocked[UNIT].reason is Reason.WAITING_FOR_MEMORY
    assert plan.wake_in_s is not None
    assert clean(world) == ("Unknown", Reason.WAITING_FOR_MEMORY)
    assert verbs(decide(with_memory(d, 75, 4))) == ["start"]


def test_memory_that_never_comes_back_blocks_for_a_bounded_time_only() -> None:
    """B17."""
    d = down("inactive")
    world = seen(with_memory(d, 121, 6_000), lambda u: replace(u, inactive_enter_us=0))
    assert verbs(decide(world)) == ["start"]


def test_a_start_waits_for_memory_also_where_the_driver_never_named_a_process() -> None:
    """B17: in a container the card was always unexplained; the unit's own end tells since when."""
    d = down("inactive")
    world = with_memory(d, 86_400, 98_304)
    now_us = look_of(world).identity.monotonic_us
    world = seen(world, lambda u: replace(u, inactive_enter_us=now_us - 2_000_000))
    assert decide(world).blocked[UNIT].reason is Reason.WAITING_FOR_MEMORY


def test_what_is_left_over_in_the_units_own_cgroup_is_ended_before_the_start() -> None:
    """B18, D18: systemd would start the unit beside it and only log it."""
    d = down()
    left = d.box.spawn(("sglang::scheduler_TP0",), GROUP)
    plan = decide(known(d.world()))
    assert signalled(plan) == [left.pid]
    assert not verbs(plan)
    assert plan.blocked[UNIT].reason is Reason.ORPHAN_WORKERS


def test_the_holder_of_the_port_is_named_and_cleared_only_when_it_is_a_stray() -> None:
    """B19."""
    d = down()
    hung = d.box.spawn(("sglang::scheduler_TP0",), "/gone", ports=(30001,), marks=MARKS)
    assert signalled(decide(known(d.world()))) == [hung.pid]
    hung.marks, hung.argv = (), ("nginx",)
    plan = decide(known(d.world()))
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.PORT_IN_USE
    assert f"pid {hung.pid}" in plan.blocked[UNIT].detail


def test_a_port_whose_holder_cannot_be_seen_blocks_and_nobody_is_killed() -> None:
    """B19."""
    world = known(down().world())
    look = replace(look_of(world), listeners=(Listener("127.0.0.1", 30001, ()),))
    plan = decide(replace(world, observation=look))
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.PORT_IN_USE


def test_a_prefill_also_needs_its_bootstrap_port() -> None:
    """B19: a port beside the declared one is taken."""
    one = spec(roles={"prefill": {"bootstrapPort": 8998}, "decode": {"port": 30002}, "router": {"port": 30003}})
    box = Box()
    ports = {}
    for role in one.role_names():
        placed = place(Declared("m", "uid-m", 1, role, one, one.role_view(role)), box.look(0, ()), "store-uid")
        assert isinstance(placed, Desired)
        ports[role] = placed.ports
    assert ports == {"prefill": (30001, 8998), "decode": (30002,), "router": (30003,)}


def test_a_worker_of_a_container_that_is_gone_is_a_stray() -> None:
    """B20: the scope in its cgroup is no unit any more."""
    d = driver(exclusive=True)
    left = d.box.spawn(("VLLM::Worker",), "/system.slice/docker-4be1.scope", gpus={UUIDS[0]: 11_264})
    d.turn()
    world = known(d.world())
    assert not signalled(decide(world))  # the scope lives: somebody else's container
    gone = replace(look_of(world), other_units=(("docker-4be1.scope", "inactive"),))
    assert signalled(decide(replace(world, observation=gone))) == [left.pid]


# C: false health (what the answer of a probe means is in tests/test_ready.py)


def probed(d: Driver, reason: Reason, failures: int = 1) -> World:
    world = d.world()
    fact = replace(d.probes[UNIT], ok=False, reason=reason, message="as probed", failures=failures)
    return replace(world, probes={UNIT: fact})


@pytest.mark.parametrize("reason", [Reason.GENERATION_TIMEOUT, Reason.GENERATION_FAILED, Reason.STALE_PROCESS_SERVING])
def test_a_unit_that_runs_and_never_generated_is_not_ready(reason: Reason) -> None:
    """C01, C07, C09, C11: and no probe alone restarts it."""
    d = settled()
    world = probed(d, reason)
    found = state(world)
    assert (found.ready, found.reason, found.available) == ("False", reason, "False")
    assert not decide(world).actions


@pytest.mark.parametrize("failures", [None, 1])
def test_what_was_found_silent_is_not_ready_again_because_a_daemon_forgot_it(failures: int | None) -> None:
    """The invocation has generated once, as stored; so is that it did not any more when it was last asked."""
    d = settled()
    invocation = d.box.units[UNIT].invocation
    d.records["m"] = replace(d.records["m"], ready_invocation=invocation, silent_invocation=invocation)
    world = replace(d.world(), probes={}) if failures is None else probed(d, Reason.GENERATION_TIMEOUT, failures)
    expected = Reason.PROBE_PENDING if failures is None else Reason.GENERATION_TIMEOUT
    assert (state(world).ready, state(world).reason) == ("False", expected)
    assert state(d.world()).ready == "True"  # it generated
    d.records["m"] = replace(d.records["m"], silent_invocation="e" * 32)
    assert state(replace(d.world(), probes={})).ready == "True"


def test_a_server_that_asks_for_a_key_is_unknown_and_left_alone() -> None:
    """C10: it lives, the probe has no key."""
    world = probed(settled(), Reason.PROBE_UNAUTHORIZED, 5)
    found = state(world)
    assert (found.ready, found.available) == ("Unknown", "Unknown")
    assert not decide(world).actions


def test_a_generation_of_another_invocation_proves_nothing() -> None:
    """C09, C11: the restart is answered for by its own process only."""
    d = settled()
    before = d.world()
    assert state(before).ready == "True"
    after = seen(before, lambda u: replace(u, invocation_id="f" * 32))
    assert (state(after).ready, state(after).reason) == ("False", Reason.PROBE_PENDING)
    assert [wanted.invocation for wanted in decide(after).probes] == ["f" * 32]


def test_a_unit_without_an_invocation_is_not_ready_by_a_record_without_one() -> None:
    d = settled()
    world = seen(replace(d.world(), probes={}), lambda u: replace(u, invocation_id=""))
    assert state(world).ready == "False"


# D: systemd


def limit_hit(d: Driver, started: str, status: int = 1) -> World:
    record = d.records["m"]
    d.records["m"] = replace(record, started_launch=started)
    world = known(d.world())
    return seen(
        world,
        lambda u: replace(u, result="start-limit-hit", exec_main_code=1, exec_main_status=status, restarts=10),
    )


def test_a_hit_start_limit_is_left_alone_until_its_cause_was_dealt_with() -> None:
    """D02."""
    d = down()
    mine = d.world().desired[0].launch_hash
    stuck = limit_hit(d, mine)
    plan = decide(stuck)
    assert not plan.actions
    assert plan.blocked[UNIT].reason is Reason.START_LIMIT_HIT
    assert verbs(decide(replace(stuck, cleared=frozenset({UNIT})))) == ["start"]
    d.specs["m"] = spec(contextLength=4096)
    assert verbs(decide(limit_hit(d, mine))) == ["start"]


def test_a_start_limit_after_exits_with_status_0_is_told_as_such() -> None:
    """D23: the exit status is not the verdict."""
    d = down()
    plan = decide(limit_hit(d, d.world().desired[0].launch_hash, status=0))
    assert plan.blocked[UNIT].reason is Reason.START_LIMIT_HIT
    assert "exited with status 0" in plan.blocked[UNIT].detail


def test_a_unit_that_changed_on_disk_is_reloaded_first_and_what_serves_as_declared_is_not_restarted() -> None:
    """D06: somebody edited the file; a restart would only be an outage."""
    d = settled()
    unit = d.box.units[UNIT]
    assert unit.file is not None
    unit.file, unit.reload = unit.file.replace("/models/m", "/models/other"), True
    plan = d.turn()
    assert [type(a) for a in plan.actions] == [PutUnit]
    assert d.turn().actions == ()
    assert d.box.restarts == 0


def test_a_restart_comes_after_the_write_and_the_reload() -> None:
    """D06: never with the old definition."""
    d = settled()
    d.specs["m"] = spec(contextLength=4096)
    plan = d.turn()
    assert isinstance(plan.actions[0], PutUnit)
    assert verbs(plan) == ["restart"]
    assert isinstance(plan.actions[-1], UnitVerb)


def test_a_unit_that_does_not_exist_is_created_and_is_not_a_stopped_one() -> None:
    """D08: show exits 0 for it, inactive/dead."""
    d = driver()
    plan = decide(d.world())
    assert isinstance(plan.actions[0], PutUnit)
    assert plan.actions[0].reason is Reason.UNIT_NOT_FOUND
    withheld = replace(d.world(), withheld=Reason.OBSERVE_ONLY)
    assert state(withheld).reason is Reason.UNIT_NOT_FOUND
    stopped = replace(down("inactive").world(), withheld=Reason.OBSERVE_ONLY)
    assert state(stopped).reason is Reason.UNIT_INACTIVE


def test_a_bad_drop_in_never_restarts_what_still_serves() -> None:
    """D12: it would be the end of a working server."""
    d = settled()
    world = seen(d.world(), lambda u: replace(u, load_state="bad-setting", loaded=None))
    assert not decide(world).actions
    assert state(world).ready == "True"


def test_a_bad_setting_blocks_the_start_and_is_named() -> None:
    """D12."""
    d = down()
    world = seen(known(d.world()), lambda u: replace(u, load_state="bad-setting", loaded=None))
    plan = decide(world)
    assert "start" not in verbs(plan)
    assert plan.blocked[UNIT].reason is Reason.UNIT_BAD_SETTING


def test_percent_and_dollar_reach_the_process_as_declared_or_are_drift() -> None:
    """D14."""
    declared = '{"name":"50%sharp","note":"$HOME x"}'
    d = settled(args={"json-model-override-args": declared})
    text = d.box.units[UNIT].file
    assert text is not None
    assert "50%%sharp" in text
    argv = parse_unit(text).argv
    assert argv is not None
    assert declared in argv

    def mangled(unit: Unit) -> Unit:
        assert unit.main is not None
        words = tuple(word.replace("%s", "/bin/bash") for word in unit.main.argv)
        return replace(unit, main=replace(unit.main, argv=words))

    world = seen(d.world(), mangled)
    assert state(world).reason is Reason.ARGV_MISMATCH
    assert "50/bin/bashharp" in state(world).message


def test_drift_is_judged_on_the_running_arguments_not_on_the_unit_alone() -> None:
    """D21: the unit is right, what runs is not."""
    d = settled(maxRunningRequests=4)

    def older(unit: Unit) -> Unit:
        assert isinstance(unit.main, Environment)
        words = list(unit.main.argv)
        words[words.index("--max-running-requests") + 1] = "32"
        return replace(unit, main=replace(unit.main, argv=tuple(words)))

    world = seen(d.world(), older)
    found = state(world)
    assert (found.ready, found.reason) == ("False", Reason.ARGV_MISMATCH)
    assert "--max-running-requests 32" in found.message
    assert "--max-running-requests 4" in found.message
    assert {drift.layer for drift in found.drift} == {"running"}


# F: the road


@pytest.mark.parametrize(
    ("reason", "reachable"),
    [
        (Reason.TRANSPORT_LOST, "Unknown"),
        (Reason.LOOK_INCOMPLETE, "Unknown"),
        (Reason.CONNECT_TIMEOUT, "False"),
        (Reason.SSH_BANNER_TIMEOUT, "False"),
        (Reason.SUDO_DENIED, "True"),
        (Reason.UNSUPPORTED_LOGIN_SHELL, "True"),
        (Reason.HELPER_MISSING, "True"),
    ],
)
def test_a_cut_command_a_dead_road_and_a_host_that_answers_are_three_things(reason: Reason, reachable: str) -> None:
    """F03, F14, F16, B12."""
    world = replace(settled().world(), observation=Unknown(reason, "told"))
    found = {c.type: (c.status, c.reason) for c in host_conditions(world, decide(world), 1)}
    assert found["Reachable"] == (reachable, reason)
    assert found["Observed"] == ("False", reason)
    assert found["GPUsReady"] == found["Clean"] == ("Unknown", reason)


# G: controllers


def test_the_order_of_lists_changes_neither_plan_nor_words() -> None:
    """G03: rows, processes, listeners, environment; arguments are ordered."""
    d = settled(env={"A": "1", "B": "2"})
    vllm_tree(d.box, "/gone")
    for pid in (91, 90):
        d.box.spawn(("nginx",), "/system.slice/nginx.service", gpus={UUIDS[2]: pid, UUIDS[3]: pid})
    world = known(d.world())
    look = look_of(world)
    for name in ("apps", "processes", "listeners", "units", "gpus", "other_units"):
        look = replace(look, **{name: tuple(reversed(getattr(look, name)))})  # type: ignore[arg-type]
    turned = seen(
        replace(world, observation=look),
        lambda u: replace(u, main=replace(u.main, env=tuple(reversed(u.main.env))) if u.main else None),
    )
    assert decide(turned) == decide(world)
    assert host_conditions(turned, decide(turned), 1) == host_conditions(world, decide(world), 1)
    assert state(turned) == state(world)


def test_the_order_of_arguments_is_a_change() -> None:
    """G03."""
    d = settled()
    world = seen(
        d.world(),
        lambda u: replace(u, main=replace(u.main, argv=(u.main.argv[0], *u.main.argv[:0:-1])) if u.main else None),
    )
    unit = look_of(world).unit(UNIT)
    assert isinstance(unit, Unit)
    assert [drift.field for drift in running_drift(world.desired[0], unit)] == ["argv"]


def test_ready_is_never_said_of_a_generation_that_is_not_applied_yet() -> None:
    """G07: at the first pass over the new spec, whatever comes of it."""
    d = settled()
    d.specs["m"] = spec(contextLength=4096)
    world = d.world()
    desired = world.desired[0]
    world = replace(world, desired=(replace(desired, declared=replace(desired.declared, generation=5)),))
    for one in (world, replace(world, withheld=Reason.PAUSED)):
        found = state(one)
        assert (found.generation, found.ready, found.reason) == (5, "False", Reason.ARGV_MISMATCH)
    gone = replace(world, observation=Unknown(Reason.CONNECT_TIMEOUT))
    assert (state(gone).generation, state(gone).ready) == (5, "Unknown")


def test_unreachable_is_not_terminated() -> None:
    """G09: nothing is planned, nothing is called down; when it is back, what runs is taken as it is."""
    d = settled()
    d.records["m"] = replace(d.records["m"], ready_invocation=d.box.units[UNIT].invocation)
    away = replace(d.world(), observation=Unknown(Reason.CONNECT_TIMEOUT, "no answer"))
    assert decide(away).actions == ()
    assert (state(away).ready, state(away).available) == ("Unknown", "Unknown")
    d.die()
    d.box.step(240_000)
    back = d.world()
    assert decide(back).actions == ()
    assert (state(back).ready, state(back).reason) == ("True", Reason.GENERATED)


def test_a_unit_left_over_from_an_abandoned_spec_is_shown_and_not_touched() -> None:
    """G11: the store does not know it any more when its host comes back."""
    d = settled()
    d.specs.clear()
    d.records.clear()
    world = d.world()
    assert decide(world).unclaimed == (UNIT,)
    assert decide(world).actions == ()


def test_nobody_is_signalled_on_an_old_picture() -> None:
    """G13: facts of more than half a minute ago kill nobody."""
    d = down()
    d.box.spawn(ENGINE, GROUP, gpus={UUIDS[0]: 9000})
    world = known(d.world())
    assert signalled(decide(world))
    assert not signalled(decide(replace(world, now_s=world.now_s + 31)))


def test_a_process_that_was_out_of_sight_for_long_is_sighted_anew() -> None:
    """G13: two sightings a week apart are one."""
    box = Box()
    proc = box.spawn(ENGINE, GROUP)
    identity = ProcessId(proc.pid, proc.start)
    memory = HostMemory()
    memory.see(box.look(0, ()), 0)
    memory.see(box.look(10, ()), 10)
    assert memory.strays[identity].first_seen_s == 0
    memory.see(box.look(604_800, ()), 604_800)
    assert memory.strays[identity].first_seen_s == 604_800


@pytest.mark.parametrize(("age_s", "wake_in_s"), [(0.5, 0.1), (30.0, 1.0)])
def test_memory_on_its_way_back_is_looked_for_often_at_first_then_each_second(age_s: float, wake_in_s: float) -> None:
    """B17: the card shows memory that nobody seen holds; nothing is started on it."""
    driver = Driver(Box(), {"m": spec()})
    world = driver.world()
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.gpus, tuple)
    gpus = tuple(replace(gpu, memory_used_mib=20_000) for gpu in look.gpus)
    since = {gpu.uuid: world.now_s - age_s for gpu in gpus}
    plan = decide(replace(world, observation=replace(look, gpus=gpus), cards=loose(look, since, 20_000)))
    assert [b.reason for b in plan.blocked.values()] == [Reason.WAITING_FOR_MEMORY]
    assert plan.wake_in_s == wake_in_s
    assert not any(isinstance(action, UnitVerb) and action.verb == "start" for action in plan.actions)
