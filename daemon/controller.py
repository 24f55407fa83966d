"""Sources, queue, workers: which host is looked at when, by whom. Decides nothing about a host itself.

Two sources put host names on the queue: committed changes of the store, and timers (each host's period, with jitter).
One `TaskGroup` holds everything; the broad catch of the worker's edge is here and nowhere else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

import structlog

from daemon.bus import Seams, Watches
from daemon.by_hand import ByHand, record_look, take_over
from daemon.chosen import ssh_settings, watch_limits
from daemon.doctor import examine
from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.observation import Fence, Unknown
from daemon.domain.status import Event, Reason
from daemon.domain.text import duration_s
from daemon.inquiries import Inquiries
from daemon.install import ensure_helper
from daemon.memory import HostMemory
from daemon.metrics import Metrics, Sample
from daemon.metrics.samples import FleetSample, HostNow
from daemon.reconcile import Limits, Pass, Reconciler
from daemon.record import end_deletion
from daemon.sampled import Shown
from daemon.settings import Settings, monotonic, wall_clock
from daemon.ssh import Road, Roads
from daemon.store import Store
from daemon.store.rows import Change
from daemon.strays import Strays
from daemon.workqueue import WorkQueue

log = structlog.get_logger("stoker")
HELPER_CHECKED_S = 300.0
UNREACHABLE_PERIODS = 3  # the longest back-off of a host that cannot be looked at: it comes back by itself


class Controller:
    """The running daemon below the API. `run` ends when cancelled; `poke` and the seams may be called meanwhile."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        roads: Roads | None = None,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], datetime] = wall_clock,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._hosts: dict[str, HostSpec] = {}
        self._roads = roads or Roads(ssh_settings(settings), self._hosts.get)
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._dice = dice
        self._memories: dict[str, HostMemory] = {}
        self._helpers: dict[str, tuple[HostSpec, float]] = {}
        self._shown = Shown(store)
        self._queue: WorkQueue[str] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._fence: Fence | None = None
        seams = Seams(self.poke, self._spawn, self._say, dice, clock)
        self._watches = Watches(watch_limits(settings), seams)
        self.strays = Strays(store, self._memories.get, self.poke, clock, wall)
        self.metrics = Metrics(self._sample)
        self._inquiries = Inquiries(store, self.metrics, wall, seams)
        store.time_writes(clock, self.metrics.wrote)

    async def run(self) -> None:
        """Begin a run of this store and reconcile its hosts until cancelled."""
        self._fence = await self._store.begin_run(self._wall())
        self._queue = WorkQueue(asyncio.get_running_loop(), self._dice)
        reconciler = Reconciler(
            self._store,
            self._road_to,
            self.metrics,
            self._fence,
            self._clock,
            self._wall,
            Limits(self._settings.look_timeout_s, self._settings.look_timeout_s, self._settings.reconcile_limit_s),
        )
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._end_with_the_others(self._queue))
                group.create_task(self._watch_store())
                for _ in range(self._settings.workers):
                    group.create_task(self._work(reconciler))
        finally:
            self._group = None

    async def _end_with_the_others(self, queue: WorkQueue[str]) -> None:
        """Once all are cancelled: no work is handed out, none is begun, and no command is waited for.

        A task that missed its one cancellation would else go on for ever, and the group, which waits for it, as well.
        """
        try:
            await asyncio.Event().wait()
        finally:
            self._group = None
            queue.shutdown()
            await self._roads.close()

    def ready(self) -> bool:
        """Whether workers run."""
        return self._group is not None

    def poke(self, host_name: str) -> None:
        """Look at that host now."""
        if self._queue is not None:
            self._queue.add(host_name)

    async def takeover(self, host_name: str, *, actor: str) -> dict[str, Any]:
        """A person's word that this daemon may act on the host: swap its fence, confirm its identity. Looks anew."""
        host = await self._store.get("Host", host_name)
        if self._fence is None:
            raise TransportError(Reason.NOT_OBSERVED_YET, "the daemon has just started; try again")
        road = await self._road_to(host_name, HostSpec.model_validate(host.spec))
        result = await take_over(self._store, road, host, self._fence, self._by_hand(), actor=actor)
        self.poke(host_name)
        return result

    async def record(self, host_name: str) -> dict[str, Any]:
        """One look whole, with what this daemon knows beside it, as a recording."""
        host = await self._store.get("Host", host_name)
        road = await self._road_to(host_name, HostSpec.model_validate(host.spec))
        memory = self._memories.get(host_name, HostMemory())
        return await record_look(self._store, road, host_name, memory, self._by_hand())

    def _by_hand(self) -> ByHand:
        return ByHand(self._clock, self._wall, self._settings.look_timeout_s)

    async def doctor(self, host_name: str) -> Sequence[dict[str, Any]]:
        """Each thing the host needs: ok, or what to do."""
        host = await self._store.get("Host", host_name)
        spec = HostSpec.model_validate(host.spec)
        checks = await examine(self._roads.road(host_name, spec), spec, self._wall().timestamp())
        return [{"name": c.name, "ok": c.ok, "found": c.message, "remedy": c.remedy} for c in checks]

    async def _road_to(self, name: str, spec: HostSpec) -> Road:
        """The road with a current helper: looked at again every five minutes, and after every change of the host."""
        road = self._roads.road(name, spec)
        checked = self._helpers.get(name)
        if checked is None or checked[0] != spec or self._clock() - checked[1] > HELPER_CHECKED_S:
            await ensure_helper(road, spec, auto=self._settings.helper_auto_install)
            self._helpers[name] = (spec, self._clock())
        return road

    async def _watch_store(self) -> None:
        """Committed changes become host names; the first round takes every host."""
        with self._store.subscribe() as changes:
            await self._shown.read_all()
            for host in await self._store.list("Host"):
                self._hosts[host.name] = HostSpec.model_validate(host.spec)
            await self._poke_all()
            await self._end_empty_deletions()
            async for change in changes:
                await self._on_change(change)

    async def _on_change(self, change: Change) -> None:
        """Wake whom it concerns; when that cannot be read, every host known so far."""
        try:
            await self._shown.follow(change)
            if change.what == "status":
                return
            if change.kind == "Host":
                await self._host_changed(change.name)
            elif change.kind is None:
                await self._poke_all()
            else:
                await self._poke_hosts_of(change.name)
        except Exception:
            log.exception("change not followed", kind=change.kind, name=change.name)
            for name in self._memories:
                self.poke(name)

    async def _host_changed(self, name: str) -> None:
        found = await self._store.find("Host", name)
        if found is not None:
            self._hosts[name] = HostSpec.model_validate(found.spec)
        self.poke(name)

    async def _poke_all(self) -> None:
        for host in await self._store.list("Host"):
            self.poke(host.name)

    async def _poke_hosts_of(self, spec_name: str) -> None:
        """The hosts where the spec is declared or has an instance; all of them once the spec is gone."""
        found = await self._store.find("ServingSpec", spec_name)
        if found is None:
            await self._poke_all()
            return
        if await end_deletion(self._store, found.uid, self._wall()):
            return
        hosts = {row.host for row in await self._store.instances(spec_uid=found.uid)}
        places = [found.spec.get("placement"), *(r.get("placement") for r in found.spec.get("roles", {}).values())]
        hosts |= {place["host"] for place in places if place}
        for host in sorted(hosts):
            self.poke(host)

    async def _end_empty_deletions(self) -> None:
        for spec in await self._store.list("ServingSpec"):
            await end_deletion(self._store, spec.uid, self._wall())

    async def _work(self, reconciler: Reconciler) -> None:
        queue = self._queue
        assert queue is not None
        while (name := await queue.get()) is not None:
            try:
                await self._once(reconciler, queue, name)
            finally:
                queue.done(name)

    async def _once(self, reconciler: Reconciler, queue: WorkQueue[str], name: str) -> None:
        """One pass and its next time; whatever it raises is an event and a back-off, never the end of the worker."""
        try:
            await self._pass(reconciler, queue, name)
        except Exception as error:
            self.metrics.reconciles.labels("failed").inc()
            log.exception("reconcile failed", host=name)
            queue.add_rate_limited(name)
            await self._say_failed(name, error)

    async def _pass(self, reconciler: Reconciler, queue: WorkQueue[str], name: str) -> None:
        memory = self._memories.setdefault(name, HostMemory())
        began = self._clock()
        try:
            done = await reconciler.reconcile(name, memory)
        finally:
            self.metrics.reconcile_seconds.observe(self._clock() - began)
        if done is None:
            await self._forget(name)
            return
        self._shown.passed(name, memory)
        self._next(queue, name, memory, done)

    def _next(self, queue: WorkQueue[str], name: str, memory: HostMemory, done: Pass) -> None:
        if done.road is not None:
            world = done.world
            units = {d.unit for d in world.desired} | {r.record.unit for r in world.retired}
            self._watches.seen(name, (world.host.ssh, world.host.via), done.road, units)
        period = self._watches.period_s(name, duration_s(done.world.host.period)) * (0.9 + 0.2 * self._dice())  # jitter
        if isinstance(done.world.observation, Unknown):
            self.metrics.reconciles.labels("unreachable").inc()
            self._helpers.pop(name, None)
            queue.add_rate_limited(name)
            queue.add_after(name, UNREACHABLE_PERIODS * period)
            return
        self.metrics.reconciles.labels("ok").inc()
        queue.forget(name)
        queue.add_after(name, period if done.wake_in_s is None else min(done.wake_in_s, period))
        if done.road is not None and self._group is not None:
            self._inquiries.start(name, memory, done, done.road)

    async def _say_failed(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        await self._say(Event(Reason.RECONCILE_FAILED, text[:1000], "Host", name, severity="Warning"))

    async def _say(self, event: Event) -> None:
        try:
            await self._store.add_event(event, self._wall())
        except Exception:
            log.exception("event not stored", host=event.name)

    async def _forget(self, name: str) -> None:
        self._memories.pop(name, None)
        self._shown.forget(name)
        self._helpers.pop(name, None)
        if self._queue is not None:
            self._queue.drop(name)
        self._hosts.pop(name, None)
        self._watches.forget(name)
        self._roads.forget(name)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._group is None:
            work.close()
            return None
        return self._group.create_task(self._edge(name, work))

    async def _edge(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A probe's or watch's edge, as a worker's: what it raises is told, and ends neither siblings nor daemon."""
        try:
            await work
        except Exception as error:
            log.exception("probe or watch failed", host=name)
            await self._say_failed(name, error)

    def _sample(self) -> Sample:
        queue = self._queue
        fleet = FleetSample(
            queue=0 if queue is None else len(queue),
            oldest_wait_s=0.0 if queue is None else queue.oldest_wait_s,
            open_connections=self._roads.open_connections,
            connects=self._roads.connects,
            paused=self._shown.paused,
            epoch=0 if self._fence is None else self._fence.epoch,
        )
        return Sample(self._shown.blocks(), [self._host_now(n, m) for n, m in sorted(self._memories.items())], fleet)

    def _host_now(self, name: str, memory: HostMemory) -> HostNow:
        age_s = None if memory.looked_at_s is None else self._clock() - memory.looked_at_s
        return HostNow(name, age_s, self._watches.is_up(name), self._watches.signals(name))
