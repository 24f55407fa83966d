"""The controller and its watches: a heard change is looked at at once, and who cannot be heard is looked at sooner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from daemon.controller import Controller
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.settings import Settings
from daemon.ssh.socket import HostSocket
from daemon.store import Store
from tests.box_road import BoxRoad
from tests.bus_stage import FakeBus
from tests.planner.box import Box
from tests.planner.driving import spec
from tests.probes.reference import frame

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = {"unwatched_period_s": 0.2, "watch_spacing_s": 0.01, "watch_retry_s": 0.1, "watch_answer_s": 1.0}


@dataclass
class Watched(BoxRoad):
    """The box, with a bus."""

    bus: FakeBus = field(default_factory=FakeBus)

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if verb == "version":
            return frame({}, verb, nonce=stdin.split(b"\n", 1)[0].removeprefix(b"nonce ").decode())
        return await super().call(verb, stdin, timeout_s)

    async def open_socket(self, path: str, timeout_s: float) -> HostSocket:
        return await self.bus.open_socket(path, timeout_s)

    @property
    def looks(self) -> int:
        return self.asked.count("observe")


@dataclass
class OneRoad:
    """A pool of one."""

    only: object
    open_connections: int = 0
    connects: dict[str, int] = field(default_factory=dict)

    def road(self, host: str, spec: HostSpec) -> object:
        return self.only

    def forget(self, host: str) -> None: ...

    async def close(self) -> None: ...


@dataclass
class Stage:
    store: Store
    controller: Controller

    def shows(self, line: str) -> bool:
        return f"\n{line}\n" in self.controller.metrics.render().decode()


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path, road: Watched, pool: OneRoad | None = None, mode: str = "observe"
) -> AsyncIterator[Stage]:
    """A controller that observes host `a`, on which unit `stoker-m.server.service` is declared, every hour."""
    async with asyncio.timeout(30), Store.open(tmp_path / "stoker.db") as store, asyncio.TaskGroup() as group:
        road.bus._server = group
        host = HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "mode": mode, "period": "60m"})
        await store.put("Host", "a", host.model_dump(mode="json"), actor="t", now=NOW)
        await store.put("ServingSpec", "m", spec("m").model_dump(mode="json"), actor="t", now=NOW)
        settings = Settings(data=tmp_path, helper_auto_install=False, **QUICK)  # type: ignore[arg-type]
        controller = Controller(store, settings, roads=pool or OneRoad(road))  # type: ignore[arg-type]
        run = group.create_task(controller.run())
        yield Stage(store, controller)
        run.cancel()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def quiet(road: Watched, seconds: float = 0.5) -> int:
    """Waits until no look was taken for so long; how many there were."""
    loop, seen = asyncio.get_running_loop(), -1
    until_s = 0.0
    async with asyncio.timeout(20):
        while seen != road.looks or loop.time() < until_s:
            if seen != road.looks:
                seen, until_s = road.looks, loop.time() + seconds
            await asyncio.sleep(0.01)
    return seen


async def test_a_heard_change_is_looked_at_and_nothing_else_is(tmp_path: Path) -> None:
    road = Watched(Box())
    async with running(tmp_path, road) as stage:
        await until(lambda: stage.shows('stoker_watch_up{host="a"} 1.0'))
        before = await quiet(road)  # its period is an hour
        road.bus.changed()
        await until(lambda: road.looks > before)
        assert stage.shows('stoker_watch_signals_total{host="a"} 1.0')


async def test_a_host_that_cannot_be_heard_is_looked_at_in_the_short_period(tmp_path: Path) -> None:
    road = Watched(Box(), bus=FakeBus(lost=Reason.UNREACHABLE))
    async with running(tmp_path, road) as stage:
        await until(lambda: road.looks >= 5)
        assert stage.shows('stoker_watch_up{host="a"} 0.0')
        said = [event.reason for event in await stage.store.events("Host", "a") if "atch" in event.reason]
        assert said == [Reason.WATCH_UNAVAILABLE]
        road.bus.lost = None
        await until(lambda: stage.shows('stoker_watch_up{host="a"} 1.0'))
        await quiet(road)


async def test_a_deleted_host_is_watched_no_longer(tmp_path: Path) -> None:
    road = Watched(Box())
    async with running(tmp_path, road) as stage:
        await until(lambda: stage.shows('stoker_watch_up{host="a"} 1.0'))
        gone = await stage.store.delete("Host", "a", NOW)
        await quiet(road)
        await stage.store.finish_delete("Host", gone.uid, now=NOW)
        await until(lambda: "stoker_watch_up{" not in stage.controller.metrics.render().decode())
        assert not stage.controller._watches.is_up("a")
        await until(lambda: road.bus._writer is not None and road.bus._writer.is_closing())
