"""A person's word to clear a process, through whole passes: by the rules of every clearing, and told to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.domain.errors import Conflict
from daemon.domain.host import HostSpec
from daemon.domain.observation import ProcessId
from daemon.store import Store
from daemon.strays import Answer, Strays
from tests.box_road import BoxRoad
from tests.planner.box import BOOT, UUIDS, Box, Proc
from tests.test_reconcile import NOON, Stage

pytestmark = pytest.mark.strays


@dataclass
class Asking:
    """A host under `report` that serves nothing, its daemon, and an orphan of ours that it leaves alone."""

    stage: Stage
    strays: Strays
    orphan: Proc

    async def ask(self, *procs: Proc, later: int = 0) -> Answer:
        wanted = [ProcessId(proc.pid, proc.start + later) for proc in procs or (self.orphan,)]
        return await self.strays.ask("a", BOOT, wanted, "ada")

    async def turn_until(self, told: str, most: int = 60) -> str:
        for _ in range(most):
            await self.stage.turn()
            found = [its.message for its in await self.stage.store.events() if told in its.message]
            if found:
                return found[0]
        raise AssertionError(f"never told: {told}; {[e.message for e in await self.stage.store.events()]}")

    async def mode(self, mode: str, **more: object) -> None:
        said = {"ssh": {"address": "192.0.2.1"}, "mode": mode, "strays": {"limit": "report"}, **more}
        await self.stage.store.put(
            "Host", "a", HostSpec.model_validate(said).model_dump(mode="json"), actor="t", now=NOON
        )

    def signals(self) -> int:
        return self.stage.road.asked.count("signal")

    def alive(self) -> bool:
        return self.orphan.pid in self.stage.box.procs


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    async with Store.open(tmp_path / "stoker.db") as store:
        stage = Stage(store, BoxRoad(Box()), await store.begin_run(NOON))
        strays = Strays(store, {"a": stage.memory}.get, lambda name: None, stage.now, stage.wall)
        await stage.put(run=False)
        uid = (await store.get("ServingSpec", "m")).uid
        marks = (("STOKER_SPEC", uid), ("STOKER_STORE", store.uid))
        made = Asking(stage, strays, stage.box.spawn(("sglang::scheduler_TP0",), "/stray", gpus={UUIDS[0]: 9000},
                                                     marks=marks, stubborn=True))  # fmt: skip
        await made.mode("enforce")
        for _ in range(4):
            await stage.turn()
        assert made.signals() == 0
        yield made


async def test_an_orphan_is_cleared_term_first_then_killed_after_the_grace_and_told(asking: Asking) -> None:
    answer = await asking.ask()
    assert [identity.pid for identity in answer.accepted] == [asking.orphan.pid]
    said = await asking.turn_until("which ada asked to clear")
    assert said == f"pid {asking.orphan.pid}, which ada asked to clear: it is gone"
    assert [signal for signal, _ in asking.stage.box.signalled] == ["TERM", "KILL"]
    assert not asking.alive()
    assert asking.stage.memory.asked == {}
    signals = [its for its in await asking.stage.store.events() if its.action.startswith("signal-")]
    assert {its.action for its in signals} == {"signal-term", "signal-kill"}
    assert all("asked by ada: pid" in its.message and its.result == "ok" for its in signals)


async def test_a_word_is_not_kept_for_the_next_process(asking: Asking) -> None:
    await asking.ask()
    await asking.turn_until("it is gone")
    before = asking.signals()
    again = asking.stage.box.spawn(asking.orphan.argv, "/stray", gpus={UUIDS[0]: 9000}, marks=asking.orphan.marks)
    for _ in range(10):
        await asking.stage.turn()
    assert asking.signals() == before
    assert again.pid in asking.stage.box.procs


async def test_a_pid_reused_after_the_word_is_not_signalled(asking: Asking) -> None:
    await asking.ask()
    asking.orphan.start += 1
    said = await asking.turn_until("which ada asked to clear")
    assert said.endswith("it is gone")
    for _ in range(40):
        await asking.stage.turn()
    assert asking.signals() == 0
    assert asking.alive()


@pytest.mark.parametrize("why", ["ObserveOnly", "Paused", "Held"])
async def test_a_word_ends_when_nothing_may_be_changed(asking: Asking, why: str) -> None:
    await asking.ask()
    if why == "ObserveOnly":
        await asking.mode("observe")
    elif why == "Paused":
        await asking.stage.store.set_paused(True, "t", NOON)
    else:
        asking.stage.road.hold = "maintenance"
    said = await asking.turn_until("which ada asked to clear")
    assert said.endswith("nothing may be changed now; ask again when it may")
    with pytest.raises(Conflict, match=why):
        await asking.ask()
    await asking.mode("enforce")
    await asking.stage.store.set_paused(False, "t", NOON)
    asking.stage.road.hold = None
    for _ in range(40):
        await asking.stage.turn()
    assert asking.signals() == 0
    assert asking.alive()


async def test_what_turns_out_to_be_foreign_is_let_go_and_told(asking: Asking) -> None:
    await asking.ask()
    asking.orphan.cgroup = "/system.slice/theirs.service"
    said = await asking.turn_until("which ada asked to clear")
    assert said.endswith("foreign, in the cgroup of live unit theirs.service")
    for _ in range(40):
        await asking.stage.turn()
    assert asking.signals() == 0


async def test_what_survives_is_told_once_and_not_signalled_for_ever(asking: Asking) -> None:
    asking.orphan.state = "D"
    asking.stage.box._signal = lambda signal, target: None  # type: ignore[method-assign]
    await asking.ask()
    said = await asking.turn_until("which ada asked to clear", 120)
    assert "survived KILL in state D" in said
    before = asking.signals()
    assert before == 2
    for _ in range(40):
        await asking.stage.turn()
    assert asking.signals() == before
    told = [its for its in await asking.stage.store.events() if "which ada asked to clear" in its.message]
    assert [(its.count, its.result) for its in told] == [(1, "refused")]


async def test_what_was_killed_and_is_no_longer_listed_on_a_card_is_not_called_gone(asking: Asking) -> None:
    asking.orphan.state = "D"
    asking.stage.box._signal = lambda signal, target: None  # type: ignore[method-assign]
    await asking.ask()
    for _ in range(60):
        await asking.stage.turn()
        if asking.signals() == 2:
            asking.orphan.gpus = {}  # the driver lists it no more; it is there all the same
            break
    await asking.stage.turn()
    (item,) = asking.strays.list("a")["items"]
    assert (item["pid"], item["verdict"], item["askedBy"]) == (asking.orphan.pid, "Clearing", "ada")
    said = await asking.turn_until("which ada asked to clear")
    assert said.endswith("it is still there, in state D; reboot the host")
    (item,) = asking.strays.list("a")["items"]
    assert (item["pid"], item["verdict"]) == (asking.orphan.pid, "UnkillableProcess")


async def test_a_steady_host_with_strays_writes_nothing_while_they_are_listed(asking: Asking) -> None:
    for _ in range(10):
        await asking.stage.turn()
    before = await asking.stage.store._read(
        lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar_one()
    )
    for figure in range(10):
        asking.stage.road.used_mib = figure * 37
        asking.orphan.state = "RSD"[figure % 3]
        await asking.stage.turn()
        assert asking.strays.list("a")["items"][0]["state"] == asking.orphan.state
    after = await asking.stage.store._read(
        lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar_one()
    )
    assert after == before
