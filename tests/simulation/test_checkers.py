"""Every checker bites: a rogue in the daemon's place breaks one law at a time, and the checker of that law says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from daemon.sim.disk import FENCE, HOLD
from daemon.sim.frame import Answer
from daemon.sim.host import SimHost
from tests.simulation import loop
from tests.simulation.faults import FOREIGN_STORE
from tests.simulation.ledger import lost
from tests.simulation.planted import HOST, WISH, Planted, planted
from tests.simulation.run import Result, amiss, stay_quiet

pytestmark = pytest.mark.fleet


def breaches_of(deed: Callable[[Planted], Awaitable[None]], kind: type[SimHost] = SimHost) -> set[str]:
    """The checkers that saw a breach in what was done."""

    async def main() -> set[str]:
        async with planted(kind) as stage:
            await deed(stage)
            return stage.names()

    return loop.run(main())


class Lax(SimHost):
    """Its helper has forgotten holds and fences."""

    def answer(self, argv: Sequence[str], stdin: bytes) -> Answer:
        disk = self.machine.disk
        kept, there = disk.files.get(HOLD), disk.files.get(FENCE)
        asked = [line.removeprefix(b"fence ") for line in stdin.split(b"\n") if line.startswith(b"fence ")]
        if there is None or not asked or "take-fence" in argv:
            return super().answer(argv, stdin)
        disk.remove(HOLD)
        disk.write(FENCE, asked[0] + b"\n")
        done = super().answer(argv, stdin)
        disk.write(FENCE, there)
        if kept is not None:
            disk.write(HOLD, kept)
        return done


def test_a_daemon_that_does_what_is_needed_breaks_nothing() -> None:
    async def lawful(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        await stage.rogue.look()
        await stage.rogue.unit("start")
        await asyncio.sleep(30.0)
        (pid, *_) = stage.host.kill_launcher(WISH.unit)
        await stage.rogue.look()
        await stage.rogue.signal(pid)

    assert breaches_of(lawful) == set()


def test_a_signal_to_what_is_not_left_over_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        stranger = stage.host.foreign_trainer(5, 9_000)
        stage.host.kill_launcher(WISH.unit)  # there is something left over, too
        await stage.rogue.look()
        await stage.rogue.signal(stranger.pid)

    assert breaches_of(deed) == {"OnlyLeftoversAreSignalled"}


def test_a_signal_where_nothing_is_left_over_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        await stage.rogue.look()
        await stage.rogue.signal(stage.host.unit(WISH.unit).exec_pid)

    assert breaches_of(deed) == {"OnlyLeftoversAreSignalled", "NoCommandWithoutDrift"}


@pytest.mark.parametrize("rule", ["hold", "fence"])
def test_a_change_that_is_asked_for_under_foreign_rule_is_seen(rule: str) -> None:
    async def deed(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        if rule == "hold":
            stage.host.hold("hands off")
        else:
            stage.host.write_fence(f"{FOREIGN_STORE} 1 r")
        await stage.rogue.look()
        await stage.rogue.unit("start")

    assert breaches_of(deed) == {"NothingUnderForeignRule"}


@pytest.mark.parametrize("rule", ["hold", "fence"])
def test_a_change_that_is_carried_out_under_foreign_rule_is_seen(rule: str) -> None:
    async def deed(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        await stage.rogue.look()
        if rule == "hold":
            stage.host.hold("hands off")
        else:
            stage.host.write_fence(f"{FOREIGN_STORE} 1 r")
        await stage.rogue.unit("start")

    assert breaches_of(deed) == set()  # the helper refuses
    assert breaches_of(deed, Lax) == {"NothingUnderForeignRule"}


def test_two_passes_at_once_are_seen() -> None:
    async def deed(stage: Planted) -> None:
        await asyncio.gather(stage.rogue.look(), stage.rogue.look())

    assert breaches_of(deed) == {"OnePlanInFlight"}


def test_a_change_out_of_a_look_that_did_not_come_whole_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        link = stage.stage.world.traffic.link(HOST)
        link.truncates = 1.0
        await stage.rogue.look()
        link.truncates = 0.0
        await stage.rogue.unit("start")

    assert breaches_of(deed) == {"NothingOutOfAnUnknown"}


def test_a_change_out_of_an_old_look_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        await stage.rogue.look()
        await asyncio.sleep(35.0)
        await stage.rogue.unit("start")

    assert breaches_of(deed) == {"NothingOutOfAnUnknown"}


def test_a_signal_out_of_a_look_without_what_it_rests_on_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        (pid, *_) = stage.host.kill_launcher(WISH.unit)
        stage.host.hung_smi(True)
        await stage.rogue.look()
        await stage.rogue.signal(pid)

    assert breaches_of(deed) == {"NothingOutOfAnUnknown"}


def test_restarts_beyond_the_budget_are_seen() -> None:
    def deed(times: int) -> Callable[[Planted], Awaitable[None]]:
        async def restarts(stage: Planted) -> None:
            for _ in range(times):
                await stage.rogue.look()
                await stage.rogue.unit("restart")
                await asyncio.sleep(120.0)

        return restarts

    needless = {"NoCommandWithoutDrift", "WhatServesIsLeftAlone"}
    assert breaches_of(deed(5)) == needless
    assert breaches_of(deed(6)) == needless | {"BudgetIsKept"}


def test_a_command_on_what_is_as_declared_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        await stage.rogue.look()
        await stage.rogue.unit("enable")

    assert breaches_of(deed) == {"NoCommandWithoutDrift"}


def test_a_stop_of_what_runs_as_declared_is_seen_though_its_file_differs() -> None:
    async def deed(stage: Planted) -> None:
        text = stage.host.file_text(WISH.unit) or ""
        stage.host.edit_file(WISH.unit, text.replace("Restart=always", "Restart=no"), reload=True)
        await stage.rogue.look()
        await stage.rogue.unit("restart")

    assert breaches_of(deed) == {"WhatServesIsLeftAlone"}


def test_two_starts_of_one_unit_are_seen() -> None:
    async def deed(stage: Planted) -> None:
        stage.host.hand_stop(WISH.unit)
        await asyncio.sleep(60.0)
        await stage.rogue.look()
        await asyncio.gather(stage.rogue.unit("start"), stage.rogue.unit("start"))

    assert breaches_of(deed) == {"OneStartAtATime", "OnePlanInFlight"}


def test_a_start_of_what_runs_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        await stage.rogue.look()
        await stage.rogue.unit("start")

    assert breaches_of(deed) == {"OneStartAtATime", "NoCommandWithoutDrift"}


def test_a_spec_that_is_lost_or_changed_behind_a_persons_back_is_seen() -> None:
    async def main() -> list[list[str]]:
        async with planted(keep_daemon=True) as stage:
            world, told = stage.stage.world, []
            assert world.store is not None
            for change in ("none", "other", "gone"):
                if change == "other":
                    await world.store.put("ServingSpec", WISH.name, {"port": 1}, actor="x", now=world.wall())
                if change == "gone":
                    await world.store.delete("ServingSpec", WISH.name, world.wall())
                told.append([line async for line in lost(world.store, world.acknowledged, world.deleting)])
            return told

    none, other, gone = loop.run(main())
    assert none == []
    assert "not as it was last acknowledged" in other[0]
    assert "terminating" in gone[0]


def test_what_has_not_converged_is_told_and_so_is_a_command_after_it_has() -> None:
    async def main() -> tuple[list[str], list[str], list[str]]:
        async with planted(keep_daemon=True) as stage:
            before = await amiss(stage.stage)
            quiet, disturbed = Result(1), Result(1)
            await stay_quiet(stage.stage, stage.tape, quiet)
            async with asyncio.TaskGroup() as group:
                group.create_task(stay_quiet(stage.stage, stage.tape, disturbed))
                await asyncio.sleep(1.0)
                stage.host.hand_stop(WISH.unit)
            stage.host.edit_file(WISH.unit, "nothing")
            return before + quiet.wrong, disturbed.wrong, await amiss(stage.stage)

    fine, disturbed, edited = loop.run(main())
    assert fine == []
    assert "after it had converged" in disturbed[0]
    assert WISH.unit in edited[0]
