"""Every checker of strays bites: a rogue in the daemon's place breaks one law at a time, and its checker says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation import loop
from tests.simulation.strays.planted import WISH, Planted, planted
from tests.simulation.strays.run import uncleared, unserved, vanished
from tests.simulation.strays.scene import OTHER_UID
from tests.simulation.strays.shapes import FOREIGN, OURS
from tests.simulation.strays.table import Now, Policy, looks_alike, owner_of, why_not

pytestmark = pytest.mark.strays


def breaches_of(deed: Callable[[Planted], Awaitable[None]]) -> set[str]:
    """The checkers that saw a breach in what was done."""

    async def main() -> set[str]:
        async with planted() as stage:
            await deed(stage)
            return stage.names()

    return loop.run(main())


def test_an_orphan_that_is_seen_and_ended_once_breaks_nothing() -> None:
    async def lawful(stage: Planted) -> None:
        part = stage.plant("worker that ignores TERM")
        await stage.rogue.look()
        await stage.rogue.signal(part.process.pid)
        await stage.rogue.signal(part.process.pid, "KILL")
        assert not stage.play.scene.alive(part)
        await stage.rogue.look()
        await stage.rogue.unit("start")
        await asyncio.sleep(20.0)

    assert breaches_of(lawful) == set()


def test_a_signal_to_any_look_alike_is_seen() -> None:
    async def main() -> dict[str, set[str]]:
        seen = {}
        async with planted() as stage:
            for shape in FOREIGN:
                part = stage.plant(shape.kind)
                if shape.serves:
                    stage.play.scene.hold_port(part, WISH.port)
                await stage.rogue.look()
                await stage.rogue.signal(part.process.pid)
                seen[shape.kind] = {str(one) for one in stage.breaches if f"pid {part.process.pid} " in one.what}
        return seen

    for kind, breaches in loop.run(main()).items():
        assert breaches, kind
        assert all("OnlyClearableAreSignalled" in breach and kind in breach for breach in breaches)


@pytest.mark.parametrize(
    ("kind", "card"),
    [
        ("worker of a dead launcher", None),  # holds nothing that is needed
        ("worker of a dead launcher", 7),
        ("worker whose environment cannot be read", 0),
        ("worker that a rule protects by command", 0),
        ("worker that a rule protects by unit", 0),
    ],
)
def test_a_signal_to_an_orphan_that_may_not_be_ended_is_seen(kind: str, card: int | None) -> None:
    async def deed(stage: Planted) -> None:
        part = stage.plant(kind, card)
        await stage.rogue.look()
        await stage.rogue.signal(part.process.pid)

    assert breaches_of(deed) == {"OnlyClearableAreSignalled"}


def test_a_signal_to_what_was_never_seen_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        await stage.rogue.look()
        part = stage.plant("worker of a dead launcher")
        await stage.rogue.signal(part.process.pid)

    assert breaches_of(deed) == {"OnlyClearableAreSignalled"}


def test_a_signal_that_meets_somebody_elses_process_under_a_used_number_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        part = stage.plant("worker of a dead launcher")
        await stage.rogue.look()
        stage.host.reuse_pid(part.process.pid)
        await stage.rogue.signal(part.process.pid)  # by the start of the one who has the number now

    assert breaches_of(deed) == {"OnlyClearableAreSignalled"}


def test_the_same_signal_again_is_seen() -> None:
    async def deed(stage: Planted) -> None:
        part = stage.plant("worker in state D")
        for _ in range(2):
            await stage.rogue.look()
            await stage.rogue.signal(part.process.pid, "KILL")

    assert breaches_of(deed) == {"NoSignalForEver"}


def test_more_processes_than_the_budget_allows_are_seen() -> None:
    def deed(count: int) -> Callable[[Planted], Awaitable[None]]:
        async def signals(stage: Planted) -> None:
            parts = [stage.plant("worker that ignores TERM") for _ in range(count)]
            await stage.rogue.look()
            for name in ("TERM", "KILL"):
                for part in parts:
                    await stage.rogue.signal(part.process.pid, name)

        return signals

    assert breaches_of(deed(2)) == set()  # a TERM and a KILL of one count once
    assert breaches_of(deed(3)) == {"KillBudgetIsKept"}


@pytest.mark.parametrize(
    ("uid", "held", "breaches"), [(0, False, set()), (0, True, set()), (OTHER_UID, False, {"OnlyDeadSegmentsGo"})]
)
def test_a_segment_that_no_dead_engine_left_is_seen_when_it_goes(uid: int, held: bool, breaches: set[str]) -> None:
    async def deed(stage: Planted) -> None:
        holder = stage.plant("worker of a dead launcher").process if held else None
        file = stage.segment("nccl-x", uid, holder)
        await stage.rogue.look()
        await stage.rogue.sweep(file)
        assert (file.name in stage.host.machine.shm.files) is held  # the helper itself keeps what is held

    assert breaches_of(deed) == breaches


@pytest.mark.parametrize("kind", ["trainer on the card", "worker of a dead launcher", "worker in state D"])
def test_a_start_on_a_card_that_somebody_holds_is_seen(kind: str) -> None:
    async def deed(stage: Planted) -> None:
        stage.plant(kind)
        stage.open_the_gate()
        stage.host.hand_start(WISH.unit)
        await asyncio.sleep(5.0)
        stage.host.advance()

    assert breaches_of(deed) == {"NoStartOnADirtyCard"}


def test_what_is_left_what_is_not_said_and_what_is_gone_is_told() -> None:
    async def main() -> tuple[list[str], list[str], list[str], list[str]]:
        async with planted(keep_daemon=True) as stage:
            await asyncio.sleep(20.0)
            before = await uncleared(stage.play) + await unserved(stage.play)
            stage.host.hold("hands off")
            orphan, theirs = stage.plant("worker of a dead launcher"), stage.plant("trainer on the card")
            stage.host.hand_stop(WISH.unit)
            await asyncio.sleep(30.0)
            left = await uncleared(stage.play)
            stage.host.leave(orphan.process)
            unsaid = await uncleared(stage.play)
            down = await unserved(stage.play)
            stage.host.leave(theirs.process)
            return before, left, [*unsaid, *down], [*vanished(stage.play.scene, set())]

    before, left, said, gone = loop.run(main())
    assert before == []
    assert "worker of a dead launcher" in left[0]
    assert WISH.unit in said[-1]
    assert "trainer on the card" in gone[0]


def test_the_shapes_are_what_their_words_say() -> None:
    assert all(looks_alike(shape) for shape in FOREIGN)
    assert not any(looks_alike(shape) for shape in OURS)
    for shape in OURS:
        owner = owner_of(shape, Now())
        assert owner == {"an input is missing": "unknown"}.get(
            shape.why, "likely" if shape.why.startswith("an engine's") else "proven"
        )


def test_policy_is_the_least_of_host_and_spec() -> None:
    likely = next(shape for shape in OURS if shape.kind == "worker without marks")
    open_host, shared = Policy(True, "orphans", False), Policy(False, "any", False)
    assert why_not(likely, Now(held_before=False), open_host) == ""
    assert "exclusive" in why_not(likely, Now(held_before=False), shared)
    assert why_not(likely, Now(), shared) == ""
    assert why_not(likely, Now(kills=frozenset({"report"})), open_host) == "policy says report"
    assert why_not(likely, Now(), Policy(True, "report", False)) == "policy says report"
    assert why_not(likely, Now(kills=frozenset()), open_host) == "holds nothing that is needed"
    assert why_not(likely, Now(spent=True), open_host) == "the budget of the hour is spent"
