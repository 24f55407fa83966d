"""What engines are asked beside the loop: tasks of their own, whose answers are facts for the next pass (law 2).

`controller` starts them after each pass. One for each instance and stray at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import structlog

from daemon.bus import Seams
from daemon.domain.errors import StokerError
from daemon.memory import HostMemory
from daemon.metrics import Metrics
from daemon.planner.clearing import ServeQuestion
from daemon.planner.states import found_silent
from daemon.planner.world import Desired, ProbeFact
from daemon.ready import Prober
from daemon.reconcile import Pass
from daemon.sampled import startup_s
from daemon.store import Store
from daemon.store.rows import StoredInstance
from daemon.verbs import Asks

log = structlog.get_logger("stoker")


class Inquiries:
    """Asks the engines of all hosts what a pass wants to know."""

    def __init__(self, store: Store, metrics: Metrics, wall: Callable[[], datetime], seams: Seams) -> None:
        self._store = store
        self._metrics = metrics
        self._wall = wall
        self._seams = seams
        self._clock = seams.clock

    def start(self, name: str, memory: HostMemory, done: Pass, road: Asks) -> None:
        """Start what this pass wants asked, while the daemon's tasks run."""
        prober = Prober(road)
        by_unit = {desired.unit: desired for desired in done.world.desired}
        for wanted in done.plan.probes:
            if wanted.unit not in memory.probing:
                memory.probing.add(wanted.unit)
                work = self.generate(name, memory, prober, by_unit[wanted.unit], wanted.invocation)
                self._seams.spawn(name, work)
        for question in done.plan.questions:
            if question.process not in memory.asking:
                memory.asking.add(question.process)
                self._seams.spawn(name, self.ask_serves(name, memory, prober, question))

    async def generate(self, name: str, memory: HostMemory, prober: Prober, desired: Desired, invocation: str) -> None:
        """One generation as a task of its own; its result is a fact for the next pass."""
        try:
            ok, reason, message = await prober.generate(desired, invocation)
            before = memory.probes.get(desired.unit)
            same = before is not None and before.invocation == invocation
            failures = 0 if ok else (before.failures if same and before is not None else 0) + 1
            fact = memory.probes[desired.unit] = ProbeFact(invocation, self._clock(), ok, reason, message, failures)
            if ok or found_silent(fact):
                await self._note_silent(name, desired, "" if ok else invocation)
            if ok:
                await self._note_ready(name, memory, desired, invocation)
            self._seams.poke(name)
            if ok:
                await self._ask_effective(name, memory, prober, desired, invocation)
        except StokerError as error:
            log.warning("probe not recorded", host=name, unit=desired.unit, error=str(error))
        finally:
            memory.probing.discard(desired.unit)

    async def _ask_effective(
        self, name: str, memory: HostMemory, prober: Prober, desired: Desired, invocation: str
    ) -> None:
        """Once for each invocation that generated: what its engine says is in effect."""
        known = memory.effective.get(desired.unit)
        if known is None or known.invocation != invocation or known.ask_again:
            fact = await prober.effective(desired, invocation)
            if fact is not None:
                memory.effective[desired.unit] = fact
                self._seams.poke(name)

    async def _note_silent(self, name: str, desired: Desired, invocation: str) -> None:
        """Which invocation does not generate any more: the next daemon does not take its last generation for life."""
        one = desired.declared

        def silent(row: StoredInstance) -> StoredInstance:
            return row if row.extra.get("silent", "") == invocation else row.noting(silent=invocation)

        await self._store.change_instance(one.spec_uid, one.role, name, silent)

    async def _note_ready(self, name: str, memory: HostMemory, desired: Desired, invocation: str) -> None:
        """Store the generation with its invocation, and close the recovery that it ends."""
        since = memory.down_since.pop(desired.unit, None)
        if since is not None:
            self._metrics.recovery_seconds.observe(self._clock() - since)
        one = desired.declared
        now = self._wall()

        def ready(row: StoredInstance) -> StoredInstance:
            if row.ready_invocation_id == invocation:
                return row
            return replace(row, ready_invocation_id=invocation, ready_generation=one.generation, ready_at=now)

        if await self._store.change_instance(one.spec_uid, one.role, name, ready):
            took_s = startup_s(memory, desired.unit, invocation, self._clock())
            if took_s is not None:
                memory.startup_s[desired.unit] = took_s
                self._metrics.startup_seconds.observe(took_s)

    async def ask_serves(self, name: str, memory: HostMemory, prober: Prober, question: ServeQuestion) -> None:
        """Whether what holds a port serves; without an answer a later pass asks again."""
        try:
            serves = await prober.serves(question.ports, question.patience_s)
            if serves is not None:  # else it is asked again by a later pass: not at once, which might go on for ever
                memory.note_serves(question, serves, self._clock())
                self._seams.poke(name)
        finally:
            memory.asking.discard(question.process)
