"""Whole passes over a box: what is written, what a failing action costs, and what a person's word stops at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.observation import Fence
from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.metrics import Metrics, Sample
from daemon.planner.states import InstanceState
from daemon.planner.world import ProbeFact
from daemon.reconcile import Limits, Pass, Reconciler
from daemon.record import state_json, write_spec_status
from daemon.store import Store
from daemon.store.rows import Correction, StoredInstance
from tests.box_road import BoxRoad
from tests.planner.box import UUIDS, Box
from tests.planner.driving import spec

UNIT = "stoker-m.server.service"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MARKS = (("STOKER_SPEC", "gone"), ("STOKER_STORE", "store"))

pytestmark = pytest.mark.main_job


@dataclass
class Stage:
    """One host, its store and a daemon that turns when told to. Time is the box's."""

    store: Store
    road: BoxRoad
    fence: Fence
    memory: HostMemory = field(default_factory=HostMemory)
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=lambda: Metrics(lambda: Sample([], ())))

    @property
    def box(self) -> Box:
        return self.road.box

    def now(self) -> float:
        return self.box.ticks / 100

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.now())

    async def put(self, name: str = "m", **more: object) -> None:
        said = spec(name, **more).model_dump(mode="json")  # type: ignore[arg-type]
        await self.store.put("ServingSpec", name, said, actor="t", now=NOON)

    async def turn(self, *, step: int = 70, probe: bool = True) -> Pass:
        reconciler = Reconciler(self.store, self._road_to, self.metrics, self.fence,
                                self.now, self.wall, self.limits)  # fmt: skip
        done = await reconciler.reconcile("a", self.memory)
        assert done is not None
        for wanted in done.plan.probes if probe else ():
            self.memory.probes[wanted.unit] = ProbeFact(wanted.invocation, self.now(), True, Reason.GENERATED, "")
        for question in done.plan.questions:
            self.memory.note_serves(question, False, self.now())
        self.box.step(step)
        return done

    async def settle(self) -> None:
        for _ in range(12):
            await self.turn()

    async def _road_to(self, name: str, spec: HostSpec) -> BoxRoad:
        return self.road

    async def said_of_host(self, condition: str) -> tuple[str, str]:
        said = await self.store.status("Host", (await self.store.get("Host", "a")).uid)
        found = said.condition(condition) if said is not None else None
        assert found is not None
        return found.status, str(found.reason)

    async def ready(self) -> str:
        found = await self.store.find("ServingSpec", "m")
        assert found is not None
        said = await self.store.status("ServingSpec", found.uid)
        condition = said.condition("Ready") if said is not None else None
        return condition.status if condition is not None else "none"


class Overtaken(Store):
    """Somebody declares something anew while a pass goes on: after it has read what is declared."""

    meanwhile: Callable[[], Awaitable[None]] | None = None
    between: Callable[[], Awaitable[None]] | None = None  # what a status is made of and that it is written

    async def put_status(self, *what: Any, **more: Any) -> bool:
        change, self.between = self.between, None
        if change is not None:
            await change()
        return await super().put_status(*what, **more)

    async def corrections(self, *of: Any, **more: Any) -> tuple[Correction, ...]:
        change, self.meanwhile = self.meanwhile, None
        if change is not None:
            await change()
        return await super().corrections(*of, **more)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with Overtaken.open(tmp_path / "stoker.db") as store:
        host = HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "mode": "enforce"})
        await store.put("Host", "a", host.model_dump(mode="json"), actor="t", now=NOON)
        made = Stage(store, BoxRoad(Box()), await store.begin_run(NOON))
        await made.put()
        yield made


async def size(store: Store) -> tuple[int, int]:
    """What a write would change: SQLite's own count of changes of the file, and how many events there are."""
    number = await store._read(lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar_one())
    return int(number), len(await store.events(limit=1000))


async def test_a_spec_becomes_a_unit_that_serves(stage: Stage) -> None:
    await stage.settle()
    assert stage.road.changes() == ["put-unit", "unit-enable", "unit-start"]
    assert await stage.ready() == "True"


async def test_what_serves_is_not_said_to_be_ready_as_a_generation_that_was_declared_during_the_pass(
    stage: Stage,
) -> None:
    """As long as no pass has judged by it: who waits for the new one would take the old process for it."""

    async def said() -> tuple[str, int, int]:
        found = await stage.store.get("ServingSpec", "m")
        status = await stage.store.status("ServingSpec", found.uid)
        condition = status.condition("Ready") if status is not None else None
        assert status is not None
        assert condition is not None
        return condition.status, condition.observed_generation, status.status["observedGeneration"]

    async def declare() -> None:
        await stage.put(args={"context-length": 2048})

    await stage.settle()
    assert await said() == ("True", 1, 1)
    assert isinstance(stage.store, Overtaken)
    stage.store.meanwhile = declare
    await stage.turn()
    assert await said() == ("True", 1, 1)
    await stage.turn()
    assert await said() == ("False", 2, 2)
    await stage.settle()
    assert await said() == ("True", 2, 2)


async def declare_host(stage: Stage, name: str) -> None:
    host = HostSpec.model_validate({"ssh": {"address": "192.0.2.2"}, "mode": "enforce"})
    await stage.store.put("Host", name, host.model_dump(mode="json"), actor="t", now=NOON)


async def said_of(stage: Stage) -> tuple[str, str, int]:
    found = await stage.store.get("ServingSpec", "m")
    status = await stage.store.status("ServingSpec", found.uid)
    ready = status.condition("Ready") if status is not None else None
    assert ready is not None
    return ready.status, str(ready.reason), ready.observed_generation


async def test_a_spec_is_not_ready_before_the_host_of_each_of_its_instances_was_looked_at(stage: Stage) -> None:
    """One role serves on a; of the other, which a new generation adds on b, nothing is known yet."""
    await declare_host(stage, "b")
    await stage.put(roles={"prefill": {"bootstrapPort": 8998}})
    await stage.settle()
    on_b = {"port": 30002, "placement": {"host": "b", "gpus": [0, 1]}}
    await stage.put(roles={"prefill": {"bootstrapPort": 8998}, "decode": on_b})
    await stage.settle()
    assert await said_of(stage) == ("Unknown", "NotObservedYet", 3)


async def test_of_two_passes_the_later_word_on_a_spec_stands(stage: Stage) -> None:
    """Passes over two hosts run side by side: one has read what a status is made of, the other writes a newer one."""
    await stage.put(args={"context-length": 2048})
    uid = (await stage.store.get("ServingSpec", "m")).uid
    old = InstanceState(UNIT, "server", "a", 1, "True", Reason.GENERATED)
    row = StoredInstance(uid, "server", "a", UNIT, f"/etc/systemd/system/{UNIT}").noting(state=state_json(old))
    await stage.store.put_instance(row)
    others: list[asyncio.Task[None]] = []

    async def other_pass() -> None:
        new = replace(old, generation=2, ready="False", reason=Reason.ARGV_MISMATCH)
        await stage.store.put_instance(row.noting(state=state_json(new)))
        others.append(asyncio.create_task(write_spec_status(stage.store, uid, NOON)))
        await asyncio.wait(others, timeout=0.2)

    assert isinstance(stage.store, Overtaken)
    stage.store.between = other_pass
    await write_spec_status(stage.store, uid, NOON)
    await asyncio.gather(*others)
    assert await said_of(stage) == ("False", "ArgvMismatch", 2)


async def test_what_is_left_on_a_forgotten_host_holds_back_neither_ready_nor_the_generation(stage: Stage) -> None:
    """A person moves a spec off a host that is dead, and forgets that host: nobody will look at it again."""
    await declare_host(stage, "b")
    await stage.put(placement={"host": "b", "gpus": [0, 1]})
    found = await stage.store.get("ServingSpec", "m")
    state = InstanceState(UNIT, "server", "b", 2, "False", Reason.HOST_UNREACHABLE)
    left = StoredInstance(found.uid, "server", "b", UNIT, f"/etc/systemd/system/{UNIT}", written_sha256="0" * 64)
    await stage.store.put_instance(left.noting(state=state_json(state)))
    await stage.put()
    await stage.settle()
    assert await said_of(stage) == ("False", "HostUnreachable", 2)
    forgotten = await stage.store.delete("Host", "b", NOON)
    await stage.store.finish_delete("Host", forgotten.uid, now=NOON)
    await stage.settle()
    assert await said_of(stage) == ("True", "Generated", 3)


async def test_a_converged_host_with_moving_figures_writes_nothing(stage: Stage) -> None:
    stage.box.spawn(("python3", "train.py"), "/system.slice/train.service", gpus={UUIDS[3]: 30_000})
    await stage.settle()
    before, asked = await size(stage.store), len(stage.road.changes())
    for figure in range(20):
        stage.road.used_mib = figure * 37
        await stage.turn()
    assert await size(stage.store) == before
    assert len(stage.road.changes()) == asked


@pytest.mark.parametrize("verb", ["put-unit", "unit-enable", "unit-start"])
async def test_an_action_that_fails_again_and_again_is_tried_less_and_less(stage: Stage, verb: str) -> None:
    stage.road.fails[verb] = 1
    for _ in range(60):  # in 42 s
        await stage.turn()
    tried = stage.road.asked.count(verb)
    assert 3 <= tried <= 10
    stage.road.fails.clear()
    for _ in range(70):
        await stage.turn()
    assert await stage.ready() == "True"


async def test_an_action_that_succeeds_without_effect_is_tried_less_and_less(stage: Stage) -> None:
    await stage.settle()
    stage.box.units[UNIT].enabled = False
    stage.box.apply = lambda action: None  # type: ignore[method-assign]
    for _ in range(60):
        await stage.turn()
    assert stage.road.asked.count("unit-enable") <= 1 + 10


async def test_a_crash_is_healed_at_once_however_often_it_comes(stage: Stage) -> None:
    await stage.settle()
    for _ in range(4):
        stage.box._end(UNIT, stage.box.units[UNIT], "inactive")
        begun = len(stage.road.changes())
        await stage.turn()
        assert stage.road.changes()[begun:] == ["unit-start"]
        await stage.settle()


async def test_a_pause_ends_a_plan_that_is_being_carried_out(stage: Stage) -> None:
    paused: list[str] = []

    async def pause_after_put() -> None:
        await stage.store.set_paused(True, "somebody", NOON)

    real = stage.road.call

    async def call(verb: str, stdin: bytes, timeout_s: float) -> bytes:
        answer = await real(verb, stdin, timeout_s)
        if verb == "put-unit" and not paused:
            paused.append(verb)
            await pause_after_put()
        return answer

    stage.road.call = call  # type: ignore[method-assign]
    await stage.turn()
    assert stage.road.changes() == ["put-unit"]


async def test_a_hold_in_the_middle_of_a_plan_ends_it(stage: Stage) -> None:
    def hold(verb: str) -> None:
        if verb == "unit-enable":
            stage.road.hold = "hands off"

    stage.road.before = hold
    await stage.turn()
    await stage.turn()
    assert stage.road.changes() == ["put-unit", "unit-enable"]
    assert not stage.box.units[UNIT].enabled


async def test_a_term_that_may_not_have_arrived_is_sent_again_and_no_kill_follows_it(stage: Stage) -> None:
    def lose(verb: str) -> None:
        if verb == "signal":
            raise TransportError(Reason.TRANSPORT_LOST, "cut", maybe_done=True)

    marks = (("STOKER_SPEC", "gone"), ("STOKER_STORE", stage.store.uid))
    stray = stage.box.spawn(("sglang::scheduler",), "/gone", gpus={UUIDS[0]: 9000}, marks=marks, stubborn=True)
    stage.road.before = lose
    for _ in range(50):  # 35 s, well beyond the grace
        await stage.turn()
    assert stage.road.asked.count("signal") >= 2
    stage.road.before = lambda verb: None
    for _ in range(80):
        await stage.turn()
        if stage.box.signalled:
            break
    assert [signal for signal, _ in stage.box.signalled] == ["TERM"]
    assert stray.pid in stage.box.procs


@pytest.mark.parametrize("at", range(1, 5))
async def test_a_daemon_that_dies_before_or_after_any_command_loses_nothing(stage: Stage, at: int) -> None:
    class Killed(BaseException):
        pass

    count = 0

    def die(verb: str) -> None:
        nonlocal count
        if verb not in ("observe", "journal"):
            count += 1
            if count == at:
                raise Killed

    stage.road.before = die
    with pytest.raises(Killed):
        await stage.settle()
    stage.road.before = lambda verb: None
    stage.memory, stage.fence = HostMemory(), await stage.store.begin_run(NOON)
    await stage.settle()
    assert await stage.ready() == "True"
    assert stage.box.restarts == 0


async def test_a_unit_name_that_is_changed_takes_the_old_unit_away_first(stage: Stage) -> None:
    await stage.settle()
    await stage.put(unit="other.service")
    for _ in range(30):
        await stage.turn()
    assert UNIT not in stage.box.units
    assert stage.box.units["other.service"].active == "active"
    assert await stage.ready() == "True"


async def test_what_fails_for_one_unit_keeps_no_other_from_starting(stage: Stage) -> None:
    await stage.put("z", gpus=(2,), port=30002)
    real = stage.road.call

    async def call(verb: str, stdin: bytes, timeout_s: float) -> bytes:
        stage.road.fails = {"put-unit": 1} if f"unit {UNIT}".encode() in stdin else {}
        return await real(verb, stdin, timeout_s)

    stage.road.call = call  # type: ignore[method-assign]
    for _ in range(5):
        await stage.turn()
    assert stage.box.units["stoker-z.server.service"].active == "active"
    assert UNIT not in stage.box.units


async def test_a_generation_noted_during_a_pass_is_not_lost_and_takes_nothing_back(stage: Stage) -> None:
    """A probe task stores its generation while the pass writes the unit: both stay."""
    await stage.settle()
    await stage.put(contextLength=4096)
    (row,) = await stage.store.instances("a")
    real = stage.road.call

    async def call(verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if verb == "unit-restart":
            await stage.store.change_instance(
                row.spec_uid, row.role, "a", lambda one: replace(one, ready_invocation_id="b" * 32)
            )
        return await real(verb, stdin, timeout_s)

    stage.road.call = call  # type: ignore[method-assign]
    await stage.turn()
    (now,) = await stage.store.instances("a")
    assert now.ready_invocation_id == "b" * 32
    assert now.written_launch != row.written_launch
    assert now.extra["started"] == now.written_launch


async def test_a_host_that_is_held_after_a_try_is_looked_at_no_more_often_than_another(stage: Stage) -> None:
    stage.road.fails["unit-start"] = 1
    for _ in range(5):
        await stage.turn()
    stage.road.hold = "hands off"
    await stage.turn()
    assert (await stage.turn()).wake_in_s is None


class SlowRoad(BoxRoad):
    """Looks are answered once `answers` is set."""

    answers: asyncio.Event

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if verb == "observe":
            await self.answers.wait()
        return await super().call(verb, stdin, timeout_s)


async def test_what_the_last_look_said_is_claimed_no_longer_while_the_next_one_does_not_answer(stage: Stage) -> None:
    await stage.settle()
    assert (await stage.ready(), await stage.said_of_host("Clean")) == ("True", ("True", "Clean"))
    slow = SlowRoad(stage.box, stage.road.fence)
    slow.answers = asyncio.Event()
    stage.road, stage.limits = slow, Limits(old_s=0.05)
    host = {"ssh": {"address": "192.0.2.1"}, "mode": "enforce", "period": "50ms"}
    stored = HostSpec.model_validate(host).model_dump(mode="json")
    await stage.store.put("Host", "a", stored, actor="t", now=NOON)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        turn = group.create_task(stage.turn())
        while await stage.ready() != "Unknown" or await stage.said_of_host("Clean") != ("Unknown", "ObservationOld"):
            await asyncio.sleep(0)
        assert await stage.said_of_host("Reachable") == ("Unknown", "ObservationOld")
        assert not turn.done()
        slow.answers.set()
    assert (await stage.ready(), await stage.said_of_host("Clean")) == ("True", ("True", "Clean"))
    assert slow.changes() == []


DROPIN = f"/etc/systemd/system/{UNIT}.d/override.conf"


def add_dropin(stage: Stage) -> None:
    stage.box.units[UNIT].dropins[DROPIN] = "[Service]\nEnvironment=NCCL_DEBUG=INFO HF_TOKEN=hf_abcdefgh12345678\n"
    stage.box.units[UNIT].load()


async def drifted(stage: Stage) -> tuple[str, str]:
    found = await stage.store.find("ServingSpec", "m")
    assert found is not None
    said = await stage.store.status("ServingSpec", found.uid)
    condition = said.condition("Drifted") if said is not None else None
    assert condition is not None
    return condition.status, condition.reason


async def test_a_dropin_is_set_aside_and_the_events_tell_layer_field_and_what_it_held(stage: Stage) -> None:
    await stage.settle()
    add_dropin(stage)
    await stage.turn()
    assert await drifted(stage) == ("True", "UnitDrift")
    await stage.settle()
    assert await drifted(stage) == ("False", "Converged")
    told = [e for e in await stage.store.events("ServingSpec", "m") if e.reason in ("UnitDrift", "Converged")]
    change, differs = (
        next(e for e in told if bool(e.action) is acted and e.reason == "UnitDrift") for acted in (True, False)
    )
    assert (change.action, change.result) == ("set-aside", "ok")
    assert "file dropin.override.conf: " in differs.message
    assert "loaded env.NCCL_DEBUG: (set) instead of (not set)" in differs.message
    assert "NCCL_DEBUG=INFO" in change.evidence
    assert "hf_abcdefgh12345678" not in f"{change}{differs}"
    assert any(e.reason == "Converged" and "nothing differs" in e.message for e in told)
    assert stage.box.restarts == 0


async def test_how_often_drift_came_back_outlives_the_daemon_and_ends_with_a_new_generation(stage: Stage) -> None:
    await stage.settle()
    for _ in range(3):
        add_dropin(stage)
        await stage.settle()
        assert await drifted(stage) == ("False", "Converged")
        stage.memory = HostMemory()
        stage.fence = await stage.store.begin_run(NOON)
    add_dropin(stage)
    await stage.settle()
    assert await drifted(stage) == ("True", "DriftContested")
    assert len(stage.box.aside) == 3
    told = [e for e in await stage.store.events("ServingSpec", "m") if e.reason == "DriftContested"]
    assert sum(e.count for e in told) == 1
    await stage.put(stop={"timeout": "90s"})
    await stage.settle()
    assert await drifted(stage) == ("False", "Converged")
    assert len(stage.box.aside) == 4


async def test_a_day_later_it_is_set_aside_again(stage: Stage) -> None:
    await stage.settle()
    for _ in range(4):
        add_dropin(stage)
        await stage.settle()
    assert await drifted(stage) == ("True", "DriftContested")
    stage.box.ticks += 24 * 3600 * 100
    await stage.settle()
    assert await drifted(stage) == ("False", "Converged")


async def test_a_refused_correction_is_not_counted(stage: Stage) -> None:
    await stage.settle()
    add_dropin(stage)
    stage.road.fails["set-aside"] = 75
    for _ in range(30):
        await stage.turn()
    assert stage.road.asked.count("set-aside") > 3
    stage.road.fails.clear()
    for _ in range(40):
        await stage.turn()
    assert await drifted(stage) == ("False", "Converged")


async def test_a_variable_of_systemds_environment_is_refused_and_the_unit_restarted_once(stage: Stage) -> None:
    stage.box.manager["LD_LIBRARY_PATH"] = "/opt/cuda/lib64"  # the host's own, from the start
    await stage.settle()
    stage.box.manager["NCCL_ALGO"] = "Ring"
    stage.box.restart_by_hand(UNIT)
    stage.box.step()
    await stage.settle()
    assert await drifted(stage) == ("False", "Converged")
    env = dict(stage.box.procs[stage.box.units[UNIT].main].env)
    assert ("NCCL_ALGO" in env, "LD_LIBRARY_PATH" in env, stage.box.restarts) == (False, True, 1)
    stage.memory = HostMemory()
    stage.box.restart_by_hand(UNIT)
    stage.box.step()
    await stage.settle()
    assert (await drifted(stage), stage.box.restarts) == (("False", "Converged"), 1)


async def test_cards_that_change_are_told_once_as_drift_of_the_host(stage: Stage) -> None:
    await stage.settle()
    stage.box.cards = 3
    await stage.settle()
    host = await stage.store.find("Host", "a")
    assert host is not None
    said = await stage.store.status("Host", host.uid)
    assert said is not None
    assert [(d["layer"], d["field"]) for d in said.status["drift"]] == [("inventory", f"uuid.{UUIDS[3]}")]
    told = [e for e in await stage.store.events("Host", "a") if e.reason == "GPUInventoryChanged"]
    assert [e.count for e in told] == [1]


async def test_a_generation_that_failed_is_asked_for_again_within_seconds_however_long_the_hosts_period(
    stage: Stage,
) -> None:
    await stage.settle()
    good = stage.memory.probes[UNIT]
    stage.memory.probes[UNIT] = replace(good, at_s=stage.now(), ok=False, reason=Reason.CONNECTION_REFUSED)
    done = await stage.turn(probe=False)
    assert not done.plan.probes
    assert done.wake_in_s is not None
    assert 0 < done.wake_in_s <= 5
    stage.box.step(500)
    assert [wanted.unit for wanted in (await stage.turn(probe=False)).plan.probes] == [UNIT]


@pytest.mark.strays
@pytest.mark.parametrize(("ran", "anew"), [(True, False), (True, True), (False, False)])
async def test_what_an_instance_held_since_boot_is_known_to_the_next_daemon(
    stage: Stage, ran: bool, anew: bool
) -> None:
    """A likely orphan is cleared from a card that was ours since boot, and from no other."""
    engine = ("python", "-m", "sglang.launch_server", "--port", "40000")
    if anew:  # declared before, deleted, and declared again
        await stage.settle()
        await stage.store.delete("ServingSpec", "m", actor="t", now=NOON)
        await stage.settle()
        await stage.put()
    if ran:
        await stage.settle()
        stage.box.crash(UNIT)
    stray = stage.box.spawn(engine, "/stray", gpus={UUIDS[0]: 9_000})
    stage.memory = HostMemory()
    await stage.settle()
    assert (stray.pid in stage.box.procs) is not ran


@pytest.mark.strays
@pytest.mark.parametrize("moved", [False, True])
async def test_what_ran_between_two_daemons_was_ours_though_nobody_saw_it_run(stage: Stage, moved: bool) -> None:
    """The daemon dies behind its start and the unit goes down before the next one looks; systemd knows that it ran.

    On the cards that the spec is moved to meanwhile nothing of ours ever ran.
    """
    await stage.turn()
    assert stage.box.units[UNIT].active == "active"
    stage.box.crash(UNIT)
    if moved:
        await stage.put(gpus=(2, 3))
    engine = ("python", "-m", "sglang.launch_server", "--port", "40000")
    stray = stage.box.spawn(engine, "/stray", gpus={UUIDS[2 if moved else 0]: 9_000})
    stage.memory = HostMemory()
    await stage.settle()
    assert (stray.pid in stage.box.procs) is moved


@pytest.mark.strays
async def test_cards_that_a_running_unit_does_not_hold_yet_were_not_ours_before(stage: Stage) -> None:
    """The spec moves to cards on which a person's server sits: what still runs is of the launch before."""
    await stage.settle()
    engine = ("python", "-m", "sglang.launch_server", "--port", "40000")
    theirs = stage.box.spawn(engine, "/stray", gpus={UUIDS[2]: 9_000})
    await stage.put(gpus=(2, 3))
    await stage.settle()
    assert theirs.pid in stage.box.procs
