"""What was recorded is understood as the daemon understood it: over simulated hosts to which things befall."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.recording_files import declared_in, read_recording
from daemon.by_hand import ByHand, look_json, record_look
from daemon.domain.actions import Signal
from daemon.domain.observation import Observation, Unknown
from daemon.observe import Wanted
from daemon.replay import Replayed, replay
from daemon.replay_json import as_json
from tests.sim.driven import UNIT, Driven, SimRoad, driven

pytestmark = pytest.mark.strays
CARDS = 4


async def recorded(stage: Driven) -> dict[str, Any]:
    return await record_look(stage.store, SimRoad(stage.host), "a", stage.memory, by(stage))


def by(stage: Driven) -> ByHand:
    return ByHand(stage.clock, stage.wall, 20.0)


def replayed(document: dict[str, Any], folder: Path) -> Replayed:
    """By way of a file, as a person does it."""
    file = folder / "recording.json"
    file.write_text(json.dumps(document))
    form, found = read_recording(str(file), [])
    return replay(form, *declared_in(found))


def happens(stage: Driven, dice: random.Random) -> None:
    """One thing that befalls the host, or none."""
    host = stage.host
    card = dice.randrange(max(1, len(host.machine.cards.present)))
    moves = [
        lambda: host.crash(UNIT),
        lambda: host.kill_launcher(UNIT, deaf=dice.random() < 0.5),
        lambda: host.kill_launcher(UNIT, port=True),
        lambda: host.foreign_trainer(card, 60_000),
        lambda: host.hand_server(30099, (card,), generates=dice.random() < 0.5),
        lambda: host.hand_stop(UNIT),
        lambda: host.hand_restart(UNIT),
        lambda: host.edit_file(UNIT, (host.file_text(UNIT) or "") + "# by hand\n", reload=True),
        lambda: host.add_dropin(UNIT, "x.conf", "[Service]\nNice=5\n"),
        lambda: host.lose_card(CARDS - 1, dice.random() < 0.5),
        lambda: host.driver_says(18, "Failed to initialize NVML: Driver/library version mismatch\n"),
        lambda: host.driver_says(0, None),
        lambda: host.hold("by a person" if dice.random() < 0.5 else None),
    ]
    if host.up and dice.random() < 0.5:
        dice.choice(moves)()


@pytest.mark.parametrize("seed", range(8))
async def test_a_recording_says_what_the_daemon_saw_and_whose_it_took_each_process_for(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    classes = set[str]()
    async with driven(tmp_path, gpus=CARDS, seed=seed) as stage:
        await stage.put()
        for _ in range(20):
            document = await recorded(stage)
            done = await stage.turn(dice.choice((0.7, 3.0, 11.0)))
            again = replayed(document, tmp_path)
            seen, look = again.world.observation, done.world.observation
            assert isinstance(look, Observation)
            assert isinstance(seen, Observation)
            told = replace(seen, at_s=look.at_s, fence=look.fence)  # the turn's first act is to take the fence
            if look.leftovers is None:  # a recording asks for them at any time
                told = replace(told, leftovers=None)
            assert told == look
            holders = () if isinstance(done.plan.holders, Unknown) else done.plan.holders.all
            assert owners(again) == {one.process.id.pid: one.ownership for one in holders}
            classes |= {one.ownership.owner for one in holders}
            happens(stage, dice)
    assert "managed" in classes


def owners(done: Replayed) -> dict[int, object]:
    holders = done.plan.holders
    return {} if isinstance(holders, Unknown) else {one.process.id.pid: one.ownership for one in holders.all}


async def test_the_plan_of_a_look_that_shows_orphans_is_the_daemons_own(tmp_path: Path) -> None:
    async with driven(tmp_path) as stage:
        await stage.put(engine={"name": "vllm", "python": "/opt/venv/bin/python"})
        await stage.until_ready()
        left = set(stage.host.kill_launcher(UNIT, deaf=True))
        for _ in range(20):
            document = await recorded(stage)
            done = await stage.turn()
            if any(isinstance(action, Signal) for action in done.plan.actions):
                break
        assert "port:30001" in document["knows"]["held"]
        twice = replayed_twice(document, tmp_path)
        assert [one["why"] for one in twice["plan"]] == [action.why for action in done.plan.actions]
        signalled = {pid for one in twice["plan"] for pid in one["pids"]}
        assert signalled
        assert signalled <= left
        assert {one["class"] for one in twice["ownership"] if one["pid"] in signalled} == {"orphan-proven"}


def replayed_twice(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    file = folder / "recording.json"
    file.write_text(json.dumps(document))
    form, found = read_recording(str(file), [])
    return as_json(replay(form, *declared_in(found), looks=2))


class Cut:
    """A road that breaks before the answer's last bytes."""

    def __init__(self, road: SimRoad, keep: float) -> None:
        self._road, self._keep = road, keep

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        whole = await self._road.call(verb, stdin, timeout_s)
        return whole[: int(len(whole) * self._keep)]


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6, 0.9, 0.99])
async def test_a_look_that_was_cut_is_kept_as_far_as_it_came_and_nothing_of_it_counts(
    keep: float, tmp_path: Path
) -> None:
    async with driven(tmp_path) as stage:
        await stage.put()
        await stage.until_ready()
        document = await look_json(Cut(SimRoad(stage.host), keep), "a", Wanted((UNIT,)), by(stage), {})
        assert document["complete"] is False
        assert document["sections"]
        again = replayed(document, tmp_path)
        assert isinstance(again.world.observation, Unknown)
        assert again.plan.actions == ()
