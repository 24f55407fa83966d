"""A host as a tired person meets it: orphans of a stopped model beside foreign work with a bad name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from daemon.asked import settle
from daemon.domain.actions import Signal
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation
from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.planner.conditions import host_conditions
from daemon.planner.plan import decide
from daemon.record import plan_json
from tests.cli.cli_stage import NOW, Daemon
from tests.planner.box import BOOT, UUIDS, Box, Proc
from tests.planner.driving import HOST, Driver, spec

MARKS = (("STOKER_SPEC", "uid-n"), ("STOKER_STORE", "store-uid"))
HOSTILE = "evil \x1b[2J [red]title[/red] \u202etxt.exe\r\x9b1m\n"


@dataclass
class Scene:
    """Spec m serves on GPUs 0 and 1; n, on 2 and 3, is stopped: what its orphans hold, nobody needs now."""

    daemon: Daemon
    driver: Driver
    orphans: list[Proc]
    foreign: Proc
    managed: Proc
    withheld: Reason | None = None
    hidden: dict[str, Any] = field(default_factory=dict)  # sections of the look that are not what they are

    def passes(self, number: int = 1) -> None:
        """What whole passes leave in memory, in the store and on the host."""
        for _ in range(number):
            asyncio.run_coroutine_threadsafe(self._pass(), self.daemon.loop).result(30)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Passes, one after the other, beside what the test does."""
        stop = threading.Event()

        def turn() -> None:
            while not stop.wait(0.02):
                self.passes()

        thread = threading.Thread(target=turn)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)

    async def _pass(self) -> None:
        store, memory = self.daemon.store, self.daemon.hands.memories.setdefault("gpu-a", HostMemory(boot_id=BOOT))
        asked = {identity: word.by for identity, word in memory.asked.items()}
        world = replace(self.driver.world(), name="gpu-a", asked=asked, withheld=self.withheld)
        assert isinstance(world.observation, Observation)
        world = replace(world, observation=replace(world.observation, **self.hidden))
        plan = decide(world)
        memory.look, memory.world, memory.plan, memory.strays = world.observation, world, plan, dict(world.strays)
        await settle(store, world, plan, memory, NOW)
        for action in plan.actions if self.withheld is None else ():
            if isinstance(action, Signal):
                self.driver.box.apply(action)
                self.driver._note(action)
        gpus = [
            {"index": at, "uuid": UUIDS[at], "product": "NVIDIA H200", "driver": "580.159.04", "fault": None}
            for at in range(4)
        ]
        status: dict[str, Any] = {
            "observedGeneration": 1, "plan": plan_json(plan.actions), "gpus": gpus,
            "withheld": None if self.withheld is None else str(self.withheld),
            "blocked": {unit: {"reason": str(b.reason), "detail": b.detail} for unit, b in plan.blocked.items()},
        }  # fmt: skip
        host = await store.get("Host", "gpu-a")
        await store.put_status("Host", host.uid, status, host_conditions(world, plan, 1), NOW)
        self.driver.box.step()


def scene(daemon: Daemon, *, crowd: int = 3, name: str = HOSTILE, **host: Any) -> Scene:
    """The host after a few passes: listed, and in the store."""
    driver = Driver(Box(), {"m": spec(), "n": spec("n", (2, 3), 30002, run=False)})
    for _ in range(8):
        driver.turn()
    driver.host = HostSpec.model_validate({**HOST.model_dump(), "strays": {"limit": "report"}, **host})
    box = driver.box
    managed = next(proc for proc in box.procs.values() if proc.cgroup.endswith("stoker-m.server.service"))
    orphans = [
        box.spawn((f"sglang::scheduler_TP{at}",), "/stray", gpus={UUIDS[2 + at % 2]: 70_000}, marks=MARKS)
        for at in range(crowd)
    ]
    argv = ("/opt/train/bin/python3", "train.py", "--name", name, "--api-key", "s3cr3tValue99")
    foreign = box.spawn(argv, "/system.slice/train.service", gpus={UUIDS[3]: 4000}, uid=1001)
    daemon.hands.clock = lambda: driver.now_s
    made = Scene(daemon, driver, orphans, foreign, managed)
    made.passes(3)
    return made
