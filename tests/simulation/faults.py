"""What a seed does to its world while it runs: each fault begins at an instant drawn, lasts, and is taken back.

A fault is a coroutine over the stage; all draw from dice of their own, so that one more draw in one changes no other.
When `trouble` returns every fault is over, everything foreign has left, and the daemon runs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from daemon.sim.host import SimHost
from tests.simulation.specs import Wish
from tests.simulation.tape import Tape
from tests.simulation.truth import unit_truth
from tests.simulation.watch import Looks, Schedule
from tests.simulation.world import World, dice_for

OVER_WITHIN_S = 1800.0  # a person who asks again and again is answered at last
WINDOWS_S = (30.0, 90.0, 240.0)
FOREIGN_STORE = "0badc0de-0000-4000-8000-000000000000"


@dataclass(slots=True)
class Stage:
    """A world with what was done to it: the schedule that checkers read, the trace, and how often each fault struck."""

    world: World
    schedule: Schedule
    tape: Tape
    looks: Looks
    faults: Counter[str]

    def note(self, kind: str, what: str) -> None:
        """A fault strikes."""
        self.faults[kind] += 1
        self.tape.note(f"{self.world.now_s():.6f} * {kind} {what}")

    async def declare(self, wish: Wish) -> bool:
        """Put a spec as a person does; what was acknowledged is on the schedule from then on."""
        done = await self.world.declare(wish)
        if done:
            self.schedule.declare(wish, self.world.now_s())
        return done

    async def insist(self, wish: Wish) -> None:
        """Until it is acknowledged: the daemon may be down, or the name may still be terminating."""
        while not await self.declare(wish):
            await asyncio.sleep(1.0)

    def some_unit(self, dice: random.Random, *, serving: bool = True) -> tuple[SimHost, str, str] | None:
        """A host, its name and a wished unit there, live unless told otherwise; None when there is none."""
        found = [(unit, host) for unit, host in sorted(self.schedule.wishes)
                 if not serving or unit_truth(self.world.hosts[host], unit).active == "active"]  # fmt: skip
        if not found:
            return None
        unit, host = dice.choice(found)
        return self.world.hosts[host], host, unit

    def some_host(self, dice: random.Random) -> tuple[SimHost, str]:
        name = dice.choice(sorted(self.world.hosts))
        return self.world.hosts[name], name


Fault = Callable[[Stage, random.Random], Awaitable[None]]


# ---- on a host ----


async def crash(stage: Stage, dice: random.Random) -> None:
    """The main process dies, once or several times."""
    for _ in range(dice.choice((1, 1, 1, 3))):
        if (found := stage.some_unit(dice)) is not None:
            host, name, unit = found
            stage.note("crash", f"{unit} on {name}")
            host.crash(unit)
        await asyncio.sleep(dice.uniform(1.0, 20.0))


async def orphan(stage: Stage, dice: random.Random) -> None:
    """The launcher dies and its workers stay, holding memory: some deaf, stuck for a while, or on the port; and one's
    number may soon be somebody else's."""
    if (found := stage.some_unit(dice)) is not None:
        host, name, unit = found
        stage.note("orphan", f"{unit} on {name}")
        left = host.kill_launcher(unit, deaf=dice.random() < 0.3, stuck=dice.random() < 0.2, port=dice.random() < 0.3)
        await asyncio.sleep(dice.uniform(0.0, 3.0))
        if left and dice.random() < 0.3:
            stage.note("pid-reused", str(left[0]))
            host.reuse_pid(left[0])
        await asyncio.sleep(dice.uniform(0.0, 60.0))
        host.thaw()


async def reboot(stage: Stage, dice: random.Random) -> None:
    """The machine is away for a while and comes back with another boot."""
    host, name = stage.some_host(dice)
    link = stage.world.traffic.link(name)
    stage.note("reboot", name)
    link.cuts += 1
    host.reboot()
    await asyncio.sleep(dice.uniform(5.0, 60.0))
    link.cuts -= 1


async def hand_stop(stage: Stage, dice: random.Random) -> None:
    if (found := stage.some_unit(dice)) is not None:
        host, name, unit = found
        stage.note("hand-stop", f"{unit} on {name}")
        host.hand_stop(unit)


async def edit(stage: Stage, dice: random.Random) -> None:
    """A unit file is edited by hand: something that matters to the launch or not, reloaded or not, restarted or not."""
    found = stage.some_unit(dice, serving=False)
    if found is None:
        return
    host, name, unit = found
    text = unit_truth(host, unit).text
    if text is None:
        return
    old, new = dice.choice(
        (("Restart=always", "Restart=no"), ("--port ", "--log-level debug --port "), ("LimitMEMLOCK", "LimitCORE"))
    )
    stage.note("edit", f"{unit} on {name}: {new}")
    host.edit_file(unit, text.replace(old, new, 1))
    if dice.random() < 0.6:
        host.reload()
        if dice.random() < 0.5 and unit_truth(host, unit).active == "active":
            host.hand_restart(unit)


async def foreign(stage: Stage, dice: random.Random) -> None:
    """Somebody's trainer takes a card for a while, as soon as it is free or at once beside what runs."""
    host, name = stage.some_host(dice)
    card = dice.randrange(8)
    stage.note("foreign", f"card {card} of {name}")
    process = host.foreign_trainer(card, dice.choice((2_000, 30_000)))
    await asyncio.sleep(dice.uniform(10.0, 120.0))
    host.leave(process)


async def foreign_server(stage: Stage, dice: random.Random) -> None:
    """A person's own server on the port of a unit, or beside it, perhaps on its cards."""
    if (found := stage.some_unit(dice, serving=False)) is not None:
        host, name, unit = found
        wish = stage.schedule.wishes[unit, name]
        port = wish.port if dice.random() < 0.6 else 40000
        stage.note("foreign-server", f"port {port} of {name}")
        process = host.hand_server(port, wish.gpus[:1] if dice.random() < 0.5 else (), dice.random() < 0.7)
        await asyncio.sleep(dice.uniform(10.0, 90.0))
        host.leave(process)


async def disable(stage: Stage, dice: random.Random) -> None:
    if (found := stage.some_unit(dice)) is not None:
        host, name, unit = found
        stage.note("disable", f"{unit} on {name}")
        host.disable(unit)


async def mask(stage: Stage, dice: random.Random) -> None:
    """A person masks a unit for a while: not forced, and looked after again when it is unmasked."""
    if (found := stage.some_unit(dice)) is not None:
        host, name, unit = found
        stage.note("mask", f"{unit} on {name}")
        host.mask(unit)
        await asyncio.sleep(dice.uniform(5.0, 60.0))
        host.unmask(unit)


async def wedge(stage: Stage, dice: random.Random) -> None:
    """Health answers, generations hang; it passes by itself."""
    if (found := stage.some_unit(dice)) is not None:
        host, name, unit = found
        stage.note("wedge", f"{unit} on {name}")
        host.wedge(unit, True)
        await asyncio.sleep(dice.uniform(10.0, 90.0))
        host.wedge(unit, False)


async def hung_driver(stage: Stage, dice: random.Random) -> None:
    """nvidia-smi hangs."""
    host, name = stage.some_host(dice)
    stage.note("hung-driver", name)
    host.hung_smi(True)
    await asyncio.sleep(dice.uniform(5.0, 60.0))
    host.hung_smi(False)


async def first_request(stage: Stage, dice: random.Random) -> None:
    """The engine starts well and crashes on its first decode, until somebody mends it."""
    if (found := stage.some_unit(dice, serving=False)) is not None:
        host, name, unit = found
        stage.note("first-request", f"{unit} on {name}")
        host.first_request_crash(unit, True)
        await asyncio.sleep(dice.uniform(10.0, 60.0))
        host.first_request_crash(unit, False)


async def host_clock(stage: Stage, dice: random.Random) -> None:
    """The host's wall clock is stepped by hours, either way."""
    host, name = stage.some_host(dice)
    by_s = dice.choice((-1, 1)) * dice.uniform(60.0, 6 * 3600.0)
    stage.note("host-clock", f"{name} by {by_s:.0f} s")
    host.step_wall_clock(by_s)


async def hold(stage: Stage, dice: random.Random) -> None:
    """A person forbids every change on a host."""
    host, name = stage.some_host(dice)
    stage.note("hold", name)
    host.hold("hands off")
    await asyncio.sleep(dice.uniform(5.0, 90.0))
    host.hold(None)


async def fence(stage: Stage, dice: random.Random) -> None:
    """A second daemon with another store takes the host; later a person gives it back."""
    host, name = stage.some_host(dice)
    stage.note("fence", name)
    host.write_fence(f"{FOREIGN_STORE} 1 {dice.getrandbits(64):016x}")
    await asyncio.sleep(dice.uniform(5.0, 60.0))
    await give_back(stage, name)


async def give_back(stage: Stage, name: str) -> None:
    """`stoker takeover`, until it went through."""
    while not await stage.world.take_over(name):
        await asyncio.sleep(2.0)


# ---- between ----


async def cut(stage: Stage, dice: random.Random) -> None:
    """The link is down: what is on its way is lost, before or after its effect."""
    _, name = stage.some_host(dice)
    link = stage.world.traffic.link(name)
    stage.note("cut", name)
    link.cuts += 1
    await asyncio.sleep(dice.choice((dice.uniform(0.01, 0.5), dice.uniform(2.0, 120.0))))
    link.cuts -= 1


async def slow(stage: Stage, dice: random.Random) -> None:
    """Answers take long, some longer than anybody waits."""
    _, name = stage.some_host(dice)
    link = stage.world.traffic.link(name)
    stage.note("slow", name)
    link.slow_s = dice.choice((0.5, 3.0, 40.0))
    await asyncio.sleep(dice.uniform(10.0, 90.0))
    link.slow_s = 0.0


async def cut_short(stage: Stage, dice: random.Random) -> None:
    """Some answers end in the middle."""
    _, name = stage.some_host(dice)
    link = stage.world.traffic.link(name)
    stage.note("cut-short", name)
    link.truncates = dice.uniform(0.1, 0.7)
    await asyncio.sleep(dice.uniform(10.0, 60.0))
    link.truncates = 0.0


# ---- on the daemon, and by its people ----


async def daemon_dies(stage: Stage, dice: random.Random) -> None:
    """The daemon dies anywhere, and is started again on its store."""
    if stage.world.controller is None:
        return
    stage.note("daemon-dies", "")
    await stage.world.stop_daemon()
    await asyncio.sleep(dice.choice((0.0, dice.uniform(0.1, 40.0))))
    await stage.world.start_daemon()


async def wall_clock(stage: Stage, dice: random.Random) -> None:
    """The daemon's wall clock is stepped by hours, either way."""
    by_s = dice.choice((-1, 1)) * dice.uniform(60.0, 6 * 3600.0)
    stage.note("wall-clock", f"{by_s:.0f} s")
    stage.world.stepped_s += by_s


async def change(stage: Stage, dice: random.Random) -> None:
    """A person declares something else."""
    if stage.world.wishes.now:
        wish = stage.world.wishes.changed(dice.choice(sorted(stage.world.wishes.now)))
        stage.note("change", str(wish))
        await stage.insist(wish)


async def delete(stage: Stage, dice: random.Random) -> None:
    """A person deletes a spec; perhaps the name comes back, and the cards go to another at once."""
    names = sorted(set(stage.world.wishes.now) & set(stage.world.acknowledged))
    if not names or stage.world.store is None:
        return
    name = dice.choice(names)
    if not await stage.world.delete(name):
        return
    wish = stage.world.wishes.drop(name)
    stage.note("delete", name)
    stage.schedule.drop(wish.unit, stage.world.now_s())
    if dice.random() < 0.6 and (again := stage.world.wishes.again(name)) is not None:
        stage.note("delete", f"{name} again")
        await stage.insist(again)


FAULTS: tuple[Fault, ...] = (
    crash, crash, orphan, orphan, orphan, cut, cut, slow, slow, cut_short, reboot, host_clock, wall_clock, edit,
    foreign, foreign_server, hand_stop, disable, mask, wedge, fence, hold, daemon_dies, daemon_dies, change, change,
    delete, hung_driver, first_request,
)  # fmt: skip


async def trouble(stage: Stage, dice: random.Random) -> None:
    """All faults of the seed, side by side; then everything is wished to run, and the daemon is there."""
    count, within_s = dice.randint(3, 12), dice.choice(WINDOWS_S)
    drawn = sorted((dice.uniform(0.0, within_s), dice.randrange(len(FAULTS)), at) for at in range(count))
    async with asyncio.timeout(OVER_WITHIN_S), asyncio.TaskGroup() as group:
        for at_s, which, number in drawn:
            group.create_task(_one(stage, at_s, FAULTS[which], dice_for(stage.world.seed, f"fault {number}")))
    for name in sorted(stage.world.wishes.now):
        await stage.insist(stage.world.wishes.resumed(name))


async def _one(stage: Stage, at_s: float, fault: Fault, dice: random.Random) -> None:
    await asyncio.sleep(at_s)
    await fault(stage, dice)
