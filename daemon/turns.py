"""Turns of units that were not ours: restarts by systemd or by hand, and failures, told with the journal's evidence.

Called by `reconcile` after each plan; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from daemon.domain.observation import Observation, Unit, Unknown
from daemon.domain.status import Event, Reason
from daemon.journal import evidence_of
from daemon.memory import HostMemory
from daemon.metrics import Metrics
from daemon.planner.world import Desired, World
from daemon.store import Store
from daemon.verbs import Asks


class Turns:
    """What turned on any host, by what its memory holds of the look before."""

    def __init__(
        self, store: Store, metrics: Metrics, clock: Callable[[], float], wall: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._wall = wall

    async def note(self, world: World, memory: HostMemory, road: Asks | None) -> None:
        """Restarts since the last look that were not ours, and failures; also since when a unit is down."""
        if isinstance(world.observation, Unknown) or road is None:
            return
        for desired in world.desired:
            unit = world.observation.unit(desired.unit)
            if unit is None or isinstance(unit, Unknown) or not unit.invocation_id:
                continue
            before = memory.invocations.get(unit.name)
            memory.invocations[unit.name] = unit.invocation_id
            self._note_down(unit.name, unit.active_state == "active", memory)
            if unit.active_state == "failed" and memory.told.get(unit.name) != unit.invocation_id:
                memory.told[unit.name] = unit.invocation_id
                await self._tell_failed(road, world.observation, desired, unit)
            if before == unit.invocation_id:
                continue
            if unit.name in memory.ours:
                memory.ours.discard(unit.name)
                continue
            if before is None:
                continue
            self._metrics.restarts.labels("systemd" if unit.restarts > 0 else "by-hand").inc()
            text, failure = await evidence_of(road, unit.name, before, world.observation)
            said = f"{unit.name} on {world.name} was restarted, not by Stoker ({unit.restarts} times by systemd)"
            memory.down_since.setdefault(unit.name, self._clock())
            await self._tell(desired, failure, said, text)

    async def _tell_failed(self, road: Asks, look: Observation, desired: Desired, unit: Unit) -> None:
        """The end of a unit that systemd does not start again, told once with the journal's evidence."""
        text, failure = await evidence_of(road, unit.name, unit.invocation_id, look)
        said = f"{unit.name} on {look.host} failed: {unit.result}, exit status {unit.exec_main_status}"
        await self._tell(desired, failure, said, text)

    async def _tell(self, desired: Desired, reason: Reason, said: str, evidence: str) -> None:
        event = Event(
            reason=reason,
            message=said,
            kind="ServingSpec",
            name=desired.declared.spec_name,
            severity="Warning",
            evidence=evidence,
        )
        await self._store.add_event(event, self._wall())

    def _note_down(self, unit: str, active: bool, memory: HostMemory) -> None:
        """A unit that generated and does not run now is down since this look: recovery is measured from here."""
        fact = memory.probes.get(unit)
        if not active and fact is not None and fact.ok:
            memory.down_since.setdefault(unit, self._clock())
