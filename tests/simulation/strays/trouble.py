"""What a seed does: units go down in all ways, processes of all shapes appear around them, and the road fails.

All is drawn from dice. When `trouble` returns the road is whole again and the daemon runs; what was planted stays.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from tests.simulation.checkers import targets_of
from tests.simulation.faults import Stage
from tests.simulation.road import Call
from tests.simulation.specs import CARDS, PYTHON, Wish
from tests.simulation.strays.scene import OTHER_UID, Birth, Part, Scene, Segment
from tests.simulation.strays.shapes import FOREIGN, OURS, Shape
from tests.simulation.strays.table import looks_alike
from tests.simulation.world import dice_for

WITHIN_S = 12.0
ALIKE_AT_LEAST = 0.45
HELD = ("card", "card", "card", "port", "both", "other", "nothing")
USERS = {"": 0, "serve": 1001}
SHM_USERS = {0: "root", 1001: "serve", OTHER_UID: "alice"}


@dataclass(slots=True)
class Play:
    """A scene on its stage; `arrivals` are the specs whose strays are older than they are."""

    scene: Scene
    stage: Stage
    wishes: list[Wish]
    arrivals: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    holds: Counter[str] = field(default_factory=Counter)

    def note(self, part: Part) -> None:
        """A part was born: counted, and told to the trace."""
        process = part.process
        self.kinds[part.shape.kind] += 1
        self.holds.update(["card"] * bool(process.memory) + [f"port on {where}" for where in process.ports.values()])
        self.holds["an engine's second port"] += any(wish.nccl in process.ports for wish in self.wishes)
        self.holds["nothing"] += not process.memory and not process.ports
        now_s = self.stage.world.now_s()
        said = f"{part.shape.kind}: pid {process.pid}, {process.memory} {process.ports} {process.cgroup}"
        self.stage.tape.note(f"{now_s:.6f} * planted {said}")


# ---- what is planted ----


def plan_of(dice: random.Random) -> list[Shape]:
    """The shapes of one seed, 6 to 20, foreign look-alikes among them in their share."""
    count = dice.randint(6, 20)
    alike = max(1, round(count * dice.uniform(ALIKE_AT_LEAST, 0.8)))
    shapes = [dice.choice(FOREIGN) for _ in range(alike)] + [dice.choice(OURS) for _ in range(count - alike)]
    dice.shuffle(shapes)
    return shapes


def plant(play: Play, shape: Shape, wish: Wish, dice: random.Random) -> None:
    """One process that holds a card or the port of a spec, both, something that nobody needs, or nothing."""
    part = play.scene.plant(shape, wish)
    what = "nothing" if shape.fate == "defunct" else dice.choice(HELD)
    if what in ("card", "both"):
        play.scene.hold_card(part, dice.choice(wish.gpus), dice.choice((600, 2_000, 9_000)))
    if what in ("port", "both") or (shape.serves and what != "other"):
        play.scene.hold_port(part, dice.choice(wish.ports))
    if what == "other":
        taken = {card for other in play.wishes for card in other.gpus}
        play.scene.hold_card(part, dice.choice([card for card in range(CARDS) if card not in taken]), 20_000)
        if shape.serves:
            play.scene.hold_port(part, 40_000 + dice.randrange(1000))
    play.note(part)


def before_it_is_declared(play: Play, wish: Wish, dice: random.Random) -> None:
    """On the day Stoker arrives: others are there first, and nothing of it is ours."""
    argv = (PYTHON, "-m", "sglang.launch_server", "--model-path", f"/models/{wish.name}", "--port", str(wish.port))
    play.scene.births[wish.unit] = Birth(argv, (("PATH", "/usr/bin"),), USERS[wish.user], "sglang::scheduler_TP0")
    for shape in plan_of(dice)[: dice.randint(2, 6)]:
        if shape.mark not in ("ours", "veiled") and shape.home != "managed":
            plant(play, shape, wish, dice)


def ghost(play: Play, wish: Wish, dice: random.Random) -> None:
    """The driver names a pid of another namespace, which here may be anybody's."""
    here = [part.process.pid for part in play.scene.parts if not part.process.devices]
    pid = dice.choice([4_100_000, *here])
    play.scene.host.machine.cards.ghosts.append((dice.choice(wish.gpus), pid, "python", 9_000))
    play.stage.note("pid-of-another-namespace", str(pid))


def mps(play: Play, wish: Wish) -> None:
    """CUDA MPS serves the first card."""
    path = "/usr/bin/nvidia-cuda-mps-server"
    made = play.scene.host.machine.processes.spawn(
        (path,), "/system.slice/nvidia-mps.service", "system", "CUDA MPS", exe=path, comm="nvidia-cuda-mps-server"
    )
    play.scene.host.machine.cards.take(made, wish.gpus[0], 30)
    play.scene.mps = made
    play.stage.note("mps", str(made.pid))


def segments(play: Play, wish: Wish, dice: random.Random) -> None:
    """Files in /dev/shm, made while the unit serves: an engine's that will be dead, a living one's, another user's."""
    scene, uid = play.scene, play.scene.births[wish.unit].uid
    spawn = scene.host.machine.processes.spawn
    for number in range(dice.randint(0, 4)):
        kind = dice.choice(("left by a dead engine", "held by somebody", "another user's"))
        owner = OTHER_UID if kind == "another user's" else uid
        holder = None
        if kind == "held by somebody":
            argv = ("/usr/bin/python3", "read.py")
            holder = spawn(argv, "/system.slice/reader.service", "foreign", "maps a segment", uid=uid)
        name = f"{dice.choice(('nccl-', 'sglang_loads_', 'psm_'))}{wish.name}-{number}"
        scene.host.shm_file(name, user=SHM_USERS[owner], holder=holder)
        scene.segments[name] = Segment(kind, owner, holder)


# ---- how a unit goes down ----


def _killed(play: Play, wish: Wish, dice: random.Random) -> None:
    """SIGKILL of the launcher: its ranks live on, each in a shape of its own."""
    host, scene = play.scene.host, play.scene
    left = host.kill_launcher(wish.unit)
    shapes = [shape for shape in OURS if "worker" in shape.kind and shape.home != "managed" and shape.fate != "defunct"]
    for pid in left:
        part = Part(host.processes[pid], dice.choice(shapes), wish.unit)
        scene.move(part, wish)
        scene.dress(part, scene.births[wish.unit])
        if dice.random() < 0.2:
            scene.hold_port(part, dice.choice(wish.ports))
        play.note(part)


def _crashed(play: Play, wish: Wish, _dice: random.Random) -> None:
    play.scene.host.crash(wish.unit)


def _stopped(play: Play, wish: Wish, _dice: random.Random) -> None:
    play.scene.host.hand_stop(wish.unit)


def _draining(play: Play, wish: Wish, dice: random.Random) -> None:
    """A stop that takes its time: the unit's processes hold what they hold and are nobody's to end."""
    play.scene.host.switches(wish.unit).linger_s = dice.uniform(5.0, 20.0)
    play.scene.host.hand_stop(wish.unit)


def _up(_play: Play, _wish: Wish, _dice: random.Random) -> None:
    """It stays up."""


WAYS: dict[str, Callable[[Play, Wish, random.Random], None]] = {
    "launcher-killed": _killed, "crashed": _crashed, "stopped": _stopped, "draining": _draining, "stays-up": _up,
}  # fmt: skip
_DRAWN = ("launcher-killed", "launcher-killed", "launcher-killed", "crashed", "stopped", "draining", "stays-up")


# ---- what fails between ----


async def _cut(play: Play, dice: random.Random) -> None:
    link = play.stage.world.traffic.link(play.scene.host.name)
    link.cuts += 1
    await asyncio.sleep(dice.uniform(0.05, 6.0))
    link.cuts -= 1


async def _slow(play: Play, dice: random.Random) -> None:
    link = play.stage.world.traffic.link(play.scene.host.name)
    link.slow_s = dice.choice((0.5, 3.0))
    await asyncio.sleep(dice.uniform(2.0, 10.0))
    link.slow_s = 0.0


async def _cut_short(play: Play, dice: random.Random) -> None:
    link = play.stage.world.traffic.link(play.scene.host.name)
    link.truncates = dice.uniform(0.2, 0.7)
    await asyncio.sleep(dice.uniform(2.0, 10.0))
    link.truncates = 0.0


async def _daemon_dies(play: Play, dice: random.Random) -> None:
    await play.stage.world.stop_daemon()
    await asyncio.sleep(dice.choice((0.0, dice.uniform(0.1, 8.0))))
    await play.stage.world.start_daemon()


_FAILS: dict[str, tuple[float, Callable[[Play, random.Random], Awaitable[None]]]] = {
    "cut": (0.2, _cut), "slow": (0.2, _slow), "cut-short": (0.15, _cut_short), "daemon-dies": (0.35, _daemon_dies),
}  # fmt: skip


class PidReuse:
    """A witness: between a look and the helper's check a target dies, and somebody else's process gets its number."""

    def __init__(self, play: Play, dice: random.Random) -> None:
        self._play, self._dice, self._share = play, dice, dice.choice((0.0, 0.0, 0.0, 0.5))

    def sent(self, call: Call) -> None:
        """Nothing yet."""

    def before(self, call: Call) -> None:
        for pid, start in targets_of(call):
            found = self._play.scene.host.processes.get(pid)
            if found is not None and found.start == start and not found.stuck and self._dice.random() < self._share:
                self._play.stage.note("pid-reused", str(pid))
                self._play.scene.host.reuse_pid(pid)

    def after(self, call: Call) -> None:
        """Nothing."""

    def returned(self, call: Call) -> None:
        """Nothing."""


# ---- all of it ----


async def trouble(play: Play, dice: random.Random) -> None:
    """Everything of the seed, side by side."""
    tight = play.scene.policy.budget < 64  # a signal that a dead daemon counted and never sent would not be seen here
    seed, settled = play.stage.world.seed, [wish for wish in play.wishes if wish.name not in play.arrivals]
    async with asyncio.TaskGroup() as group:
        for wish in settled:
            way = dice.choice(_DRAWN)
            group.create_task(_goes_down(play, wish, way, dice.uniform(0.0, 4.0), dice_for(seed, wish.name)))
        for number, shape in enumerate(plan_of(dice) if settled else ()):
            at_s, wish = dice.uniform(0.0, WITHIN_S), dice.choice(settled)
            group.create_task(_appears(play, shape, wish, at_s, dice_for(seed, f"plant {number}")))
        for name, (share, fails) in _FAILS.items():
            if dice.random() < share and not (tight and name == "daemon-dies"):
                group.create_task(_happens(play, name, dice.uniform(0.0, WITHIN_S), fails, dice_for(seed, name)))
        if settled and dice.random() < 0.06:
            group.create_task(_ghost(play, dice.choice(settled), dice.uniform(0.0, WITHIN_S), dice_for(seed, "ghost")))


async def _goes_down(play: Play, wish: Wish, way: str, at_s: float, dice: random.Random) -> None:
    await asyncio.sleep(at_s)
    play.stage.note(way, wish.unit)
    WAYS[way](play, wish, dice)


async def _appears(play: Play, shape: Shape, wish: Wish, at_s: float, dice: random.Random) -> None:
    await asyncio.sleep(at_s)
    play.scene.host.advance()
    if shape.home == "managed" and not play.scene.host.unit(wish.unit).down:
        shape = replace(shape, home="nowhere", mark="ours")  # of a start that lives or waits it would be its own
    plant(play, shape, wish, dice)


async def _happens(
    play: Play, name: str, at_s: float, fails: Callable[[Play, random.Random], Awaitable[None]], dice: random.Random
) -> None:
    await asyncio.sleep(at_s)
    play.stage.note(name, "")
    await fails(play, dice)


async def _ghost(play: Play, wish: Wish, at_s: float, dice: random.Random) -> None:
    await asyncio.sleep(at_s)
    ghost(play, wish, dice)


def alike(kinds: Counter[str]) -> int:
    """How many of these are somebody else's look-alikes."""
    return sum(kinds[shape.kind] for shape in (*OURS, *FOREIGN) if looks_alike(shape))
