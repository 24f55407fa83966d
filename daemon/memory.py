"""What one host's reconciles remember between looks, in this process only. Losing it costs a look, never an action.

Owned by `controller`, one for each host; changed by `reconcile` and by the probe tasks of that host only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from daemon.domain.observation import Observation, ProcessId, Unknown
from daemon.planner.plan import Plan
from daemon.planner.world import Desired, ProbeFact, StrayFact, World

FACTS_KEPT_S = 30.0


@dataclass(slots=True)
class HostMemory:
    """Facts of one boot; `forget_boot` drops those that a reboot makes false."""

    boot_id: str = ""
    strays: dict[ProcessId, StrayFact] = field(default_factory=dict)
    stray_seen_s: dict[ProcessId, float] = field(default_factory=dict)
    probes: dict[str, ProbeFact] = field(default_factory=dict)
    probing: set[str] = field(default_factory=set)
    asking: set[ProcessId] = field(default_factory=set)
    held_before: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    memory_since: dict[str, float] = field(default_factory=dict)
    down_since: dict[str, float] = field(default_factory=dict)
    invocations: dict[str, str] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    told: dict[str, str] = field(default_factory=dict)  # unit → the invocation whose failure was told
    failures: int = 0
    look: Observation | Unknown | None = None
    looked_at_s: float | None = None
    plan: Plan | None = None
    world: World | None = None

    def see(self, look: Observation, now_s: float) -> None:
        """Take in one complete look: note first sightings, drop what is gone, forget all of another boot."""
        if look.identity.boot_id != self.boot_id:
            self._forget_boot(look.identity.boot_id)
        if isinstance(look.processes, Unknown):
            return
        here = {process.id for process in look.processes}
        for identity in here:
            if identity not in self.strays:
                self.strays[identity] = StrayFact(first_seen_s=now_s)
            elif now_s - self.stray_seen_s.get(identity, now_s) > FACTS_KEPT_S:
                self.strays[identity] = replace(self.strays[identity], first_seen_s=now_s)
            self.stray_seen_s[identity] = now_s
        for identity in set(self.strays) - here:
            del self.strays[identity]
            self.stray_seen_s.pop(identity, None)
        self._see_memory(look, now_s)

    def _see_memory(self, look: Observation, now_s: float) -> None:
        """Since when a card shows memory that no row explains."""
        if isinstance(look.gpus, Unknown) or isinstance(look.apps, Unknown):
            return
        explained = {app.gpu_uuid for app in look.apps}
        for gpu in look.gpus:
            if gpu.uuid in explained or not gpu.memory_used_mib:
                self.memory_since.pop(gpu.uuid, None)
            else:
                self.memory_since.setdefault(gpu.uuid, now_s)

    def note_held(self, desired: Desired) -> None:
        """An instance of ours runs: its cards and ports have been ours since this boot."""
        self.held_before |= desired.gpu_uuids
        self.held_before |= {f"port:{port}" for port in desired.ports}

    def _forget_boot(self, boot_id: str) -> None:
        self.boot_id = boot_id
        for kept in (self.strays, self.stray_seen_s, self.probes, self.held_before, self.cleared, self.memory_since):
            kept.clear()
