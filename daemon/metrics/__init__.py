"""Prometheus metrics. Counters and histograms are kept here; state is told by `read` at each scrape, so what is deleted
vanishes by itself. Created by the composition root, used by `controller`, `reconcile` and `ready`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from daemon import __version__
from daemon.metrics.families import Blocks, now_blocks, text_of
from daemon.metrics.samples import FleetSample, HostNow

ACTION_KINDS = (
    "put-unit", "set-aside", "remove-unit", "unit-start", "unit-stop", "unit-restart", "unit-enable", "unit-disable",
    "signal-term", "signal-kill", "signal-cont",
)  # fmt: skip
SIGNALS = ("TERM", "CONT", "KILL")
SIGNAL_RESULTS = ("ok", "gone", "changed", "moved", "protected", "failed")
ACTION_RESULTS = ("ok", "refused", "failed", "unknown")
REFUSALS = ("GroundChanged", "FencedOff", "Held")
RESTART_REASONS = ("systemd", "LaunchChanged", "by-hand")
SEVERITIES = ("Normal", "Warning")
_SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything state-like at one instant: lines made before, of hosts and objects, and what is read now."""

    blocks: Sequence[Blocks] = ()
    hosts: Iterable[HostNow] = ()
    fleet: FleetSample = field(default_factory=FleetSample)


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(self, read: Callable[[], Sample]) -> None:
        self._read = read
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("stoker_reconcile", "Reconciles of a host, by result", "result")
        self.reconcile_seconds = self._histogram("stoker_reconcile_seconds", "Time of one reconcile", (0.05, *_SECONDS))
        self.look_seconds = self._histogram("stoker_look_seconds", "Time of one complete look at a host", _SHORT)
        self.actions = self._counter(
            "stoker_actions", "Commands that change a host, by kind and result", "kind", "result"
        )
        self.signals = self._counter(
            "stoker_signals", "Signals, one for each process, by signal and what the host said", "signal", "result"
        )
        self.refusals = self._counter("stoker_refusals", "Commands that a host refused, by reason", "reason")
        self.restarts = self._counter("stoker_restarts", "Restarts of instances seen or ordered, by reason", "reason")
        self.recovery_seconds = self._histogram(
            "stoker_recovery_seconds",
            "From the first look that saw a serving instance down to its next generation",
            _SECONDS,
        )
        self.startup_seconds = self._histogram(
            "stoker_startup_seconds", "From the start of an instance's process to its first generation", _SECONDS
        )
        self.events = self._counter("stoker_events", "Events stored, repeated ones included", "severity")
        self.store_write_seconds = self._histogram(
            "stoker_store_write_seconds",
            "Time of one committed write of the store, waiting for its turn left out",
            _SHORT,
        )
        ProcessCollector(registry=self.registry)
        self._prime()

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, what, registry=self.registry, buckets=buckets)

    def _prime(self) -> None:
        for result in ("ok", "failed", "unreachable"):
            self.reconciles.labels(result)
        for kind in ACTION_KINDS:
            for result in ACTION_RESULTS:
                self.actions.labels(kind, result)
        for signal in SIGNALS:
            for result in SIGNAL_RESULTS:
                self.signals.labels(signal, result)
        for counter, values in (
            (self.restarts, RESTART_REASONS),
            (self.refusals, REFUSALS),
            (self.events, SEVERITIES),
        ):
            for value in values:
                counter.labels(value)

    def wrote(self, seconds: float, severities: Sequence[str]) -> None:
        """The store committed a write, with events of these severities in it."""
        self.store_write_seconds.observe(seconds)
        for severity in severities:
            self.events.labels(severity).inc()

    def render(self) -> bytes:
        """The exposition text."""
        sample = self._read()
        now = now_blocks(sample.fleet, sample.hosts, (__version__, platform.python_version()))
        return generate_latest(self.registry) + text_of([now, *sample.blocks]).encode()
