"""What outlives a daemon of the signals it sent: the budget of the hour, and who survived KILL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from daemon.domain.host import HostSpec
from daemon.domain.observation import ProcessId
from daemon.domain.status import Event
from daemon.memory import Asked, HostMemory
from daemon.store import Store
from tests.box_road import BoxRoad
from tests.planner.box import UUIDS, Box, Proc
from tests.test_reconcile import NOON, Stage

pytestmark = pytest.mark.strays


@dataclass
class Host:
    """A host whose spec m needs two cards, with the marks that its processes carry."""

    stage: Stage
    marks: tuple[tuple[str, str], ...]

    @property
    def box(self) -> Box:
        return self.stage.box

    def orphan(self, card: int = 0, **more: object) -> Proc:
        return self.box.spawn(("sglang::scheduler_TP0",), "/stray", gpus={UUIDS[card]: 900}, marks=self.marks, **more)

    async def declare(self, **strays: object) -> None:
        said = {"ssh": {"address": "192.0.2.1"}, "mode": "enforce", "strays": strays}
        declared = HostSpec.model_validate(said).model_dump(mode="json")
        await self.stage.store.put("Host", "a", declared, actor="t", now=NOON)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.stage.turn()

    async def new_daemon(self) -> None:
        """Everything that only memory held is gone."""
        self.stage.memory = HostMemory()
        self.stage.fence = await self.stage.store.begin_run(NOON)

    async def told(self, reason: str) -> list[Event]:
        return [event for event in await self.stage.store.events(limit=1000) if event.reason == reason]

    def sent(self, result: str = "ok") -> dict[str, float]:
        names = ("TERM", "CONT", "KILL")
        return {name: self.stage.metrics.signals.labels(name, result)._value.get() for name in names}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with Store.open(tmp_path / "stoker.db") as store:
        stage = Stage(store, BoxRoad(Box()), await store.begin_run(NOON))
        await stage.put()
        uid = (await store.get("ServingSpec", "m")).uid
        made = Host(stage, (("STOKER_SPEC", uid), ("STOKER_STORE", store.uid)))
        await made.declare()
        yield made


def survive(box: Box) -> None:
    """Signals reach the processes and change nothing, as in state D."""
    box._signal = lambda signal, target: box.signalled.append((signal, "stuck"))  # type: ignore[method-assign]


async def survived(host: Host) -> list[Event]:
    return [event for event in await host.told("UnkillableProcess") if "no instance is started" in event.message]


async def test_a_survivor_is_told_once_and_never_signalled_again_also_by_the_next_daemon(host: Host) -> None:
    left = host.orphan(state="D")
    survive(host.box)
    await host.turns(60)
    assert host.sent() == {"TERM": 1, "CONT": 0, "KILL": 1}
    for _ in range(2):
        await host.new_daemon()
        await host.turns(60)
    assert host.sent() == {"TERM": 1, "CONT": 0, "KILL": 1}
    events = await survived(host)
    assert len(events) == 1
    assert f"pid {left.pid}" in events[0].message
    assert await host.stage.said_of_host("Clean") == ("False", "UnkillableProcess")
    assert "unit-start" not in host.stage.road.changes()


@pytest.mark.parametrize("later_h", [25, 24 * 29])
async def test_a_survivor_is_known_for_as_long_as_the_host_is_up(host: Host, later_h: int) -> None:
    host.orphan(state="D")
    survive(host.box)
    await host.turns(60)
    host.box.ticks += later_h * 3600 * 100
    await host.new_daemon()
    await host.turns(60)
    assert host.sent() == {"TERM": 1, "CONT": 0, "KILL": 1}
    assert len(await survived(host)) == 1
    assert await host.stage.said_of_host("Clean") == ("False", "UnkillableProcess")


async def test_a_survivor_that_one_look_did_not_show_is_known_when_it_is_back(host: Host) -> None:
    left = host.orphan(state="D")
    host.box.spawn(("python3", "train.py"), "/system.slice/train.service", gpus={UUIDS[1]: 9000})  # no start meanwhile
    survive(host.box)
    await host.turns(60)
    del host.box.procs[left.pid]
    await host.turns(1)
    host.box.procs[left.pid] = left
    await host.turns(60)
    assert host.sent() == {"TERM": 1, "CONT": 0, "KILL": 1}
    assert len(await survived(host)) == 1


async def test_a_survivor_that_the_store_could_not_note_is_told_by_the_next_pass(host: Host) -> None:
    host.orphan(state="D")
    survive(host.box)
    add, failed = host.stage.store.add_event, list[Event]()

    async def fails_once(event: Event, now: datetime) -> None:
        if "no instance is started" in event.message and not failed:
            failed.append(event)
            raise OSError("disk full")
        await add(event, now)

    host.stage.store.add_event = fails_once  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        await host.turns(60)
    await host.turns(10)
    assert len(await survived(host)) == 1


async def test_its_cards_serve_again_once_it_is_gone(host: Host) -> None:
    left = host.orphan(state="D")
    survive(host.box)
    await host.turns(60)
    del host.box.procs[left.pid]
    await host.turns(12)
    assert await host.stage.said_of_host("Clean") == ("True", "Clean")
    assert await host.stage.ready() == "True"


async def test_a_survivor_of_the_boot_before_is_nobody_now(host: Host) -> None:
    """The same pid and start under another boot id: an ordinary orphan, ended like any other."""
    left = host.orphan()
    key = f"another-boot:{left.pid}:{left.start}"
    await host.stage.store.note_corrections([(key, UUIDS[0])], "survived", host.stage.wall(), host="a")
    await host.turns(20)
    assert left.pid not in host.box.procs
    assert await host.stage.ready() == "True"


async def test_the_next_daemon_goes_on_counting_the_budget_of_the_hour(host: Host) -> None:
    await host.declare(budget=3)
    left = [host.orphan() for _ in range(5)]
    await host.turns(20)
    assert sum(proc.pid in host.box.procs for proc in left) == 2
    await host.new_daemon()
    await host.turns(60)
    assert sum(proc.pid in host.box.procs for proc in left) == 2
    assert await host.stage.said_of_host("Clean") == ("False", "KillBudgetExhausted")
    assert len(await host.told("KillBudgetExhausted")) == 2  # the host's condition and the spec's, once each
    host.box.ticks += 3600 * 100
    await host.turns(20)
    assert not any(proc.pid in host.box.procs for proc in left)
    assert await host.stage.ready() == "True"


async def test_a_greater_budget_lets_it_go_on_at_once(host: Host) -> None:
    await host.declare(budget=1)
    left = [host.orphan() for _ in range(3)]
    await host.turns(20)
    assert sum(proc.pid in host.box.procs for proc in left) == 2
    await host.declare(budget=8)
    await host.turns(20)
    assert not any(proc.pid in host.box.procs for proc in left)


async def test_term_and_kill_of_one_process_count_once(host: Host) -> None:
    await host.declare(budget=2)
    left = [host.orphan(stubborn=True) for _ in range(2)]
    await host.turns(60)
    assert host.sent() == {"TERM": 2, "CONT": 0, "KILL": 2}
    assert not any(proc.pid in host.box.procs for proc in left)


async def test_a_persons_word_costs_no_budget(host: Host) -> None:
    await host.declare(budget=1)
    asked, left = host.orphan(), host.orphan()
    await host.turns(1)
    host.stage.memory.asked[ProcessId(asked.pid, asked.start)] = Asked("ada", host.stage.now())
    await host.turns(6)
    assert not {asked.pid, left.pid} & host.box.procs.keys()
    assert host.sent()["TERM"] == 2


async def test_a_target_that_moved_was_not_signalled_and_is_looked_at_anew(host: Host) -> None:
    """Between look and signal somebody's unit took it in."""
    left = host.orphan()

    def take_in(verb: str) -> None:
        if verb == "signal":
            left.cgroup = "/system.slice/theirs.service"

    host.stage.road.before = take_in
    await host.turns(60)
    assert left.pid in host.box.procs
    assert host.box.signalled == []
    assert host.sent("moved") == {"TERM": 1, "CONT": 0, "KILL": 0}
    assert host.sent() == {"TERM": 0, "CONT": 0, "KILL": 0}
    assert await host.stage.said_of_host("Clean") == ("False", "ForeignHolder")


async def test_no_kill_follows_a_term_that_did_not_reach_its_process(host: Host) -> None:
    left = host.orphan()
    host.stage.road._reaches = lambda target, group: "protected"  # type: ignore[method-assign]
    await host.turns(120)
    assert left.pid in host.box.procs
    assert host.sent("protected")["TERM"] > 1
    assert host.sent("protected")["KILL"] == 0
    assert await host.stage.said_of_host("Clean") == ("False", "OrphanWorkers")
