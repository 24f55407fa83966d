"""Prometheus metrics. Counters and histograms are kept here; state is read at scrape time from a snapshot, so what is
deleted vanishes by itself. Created by the composition root, used by `controller`, `reconcile` and `ready`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

ACTION_KINDS = (
    "put-unit", "remove-unit", "unit-start", "unit-stop", "unit-restart", "unit-enable", "unit-disable",
    "signal-term", "signal-kill", "signal-cont",
)  # fmt: skip
ACTION_RESULTS = ("ok", "refused", "failed", "unknown")
RESTART_REASONS = ("systemd", "LaunchChanged", "by-hand")
STRAY_KINDS = ("orphan-proven", "orphan-likely", "foreign", "unknown", "ghost", "defunct")
LAYERS = ("file", "loaded", "running", "effective", "placement", "inventory")
_SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


@dataclass(frozen=True, slots=True)
class HostSample:
    """One host at scrape time. `age_s` is None before the first complete look; `drift` is (spec, layer, field)."""

    host: str
    up: bool
    age_s: float | None
    strays: tuple[tuple[str, int], ...] = ()
    drift: tuple[tuple[str, str, str], ...] = ()
    watched: bool = False
    signals: int = 0


@dataclass(frozen=True, slots=True)
class ConditionSample:
    """One condition of a host or a spec at scrape time."""

    kind: str
    name: str
    type: str
    status: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything state-like at one instant."""

    hosts: Sequence[HostSample] = ()
    conditions: Sequence[ConditionSample] = ()


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(self, read: Callable[[], Sample]) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "stoker_reconcile", "Reconciles of a host, by result", ["result"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "stoker_reconcile_seconds", "Time of one reconcile", registry=self.registry, buckets=(0.05, *_SECONDS)
        )
        self.actions = Counter(
            "stoker_actions",
            "Commands that change a host, by kind and result",
            ["kind", "result"],
            registry=self.registry,
        )
        self.restarts = Counter(
            "stoker_restarts", "Restarts of instances seen or ordered, by reason", ["reason"], registry=self.registry
        )
        self.recovery_seconds = Histogram(
            "stoker_recovery_seconds",
            "From the first look that saw a serving instance down to its next generation",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.registry.register(_State(read))
        self._prime()

    def _prime(self) -> None:
        for result in ("ok", "failed", "unreachable"):
            self.reconciles.labels(result)
        for kind in ACTION_KINDS:
            for result in ACTION_RESULTS:
                self.actions.labels(kind, result)
        for reason in RESTART_REASONS:
            self.restarts.labels(reason)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _State(Collector):
    """Gauges computed from one snapshot at each scrape."""

    def __init__(self, read: Callable[[], Sample]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        sample = self._read()
        up = GaugeMetricFamily("stoker_host_up", "1 when the last look at the host was complete", labels=["host"])
        age = GaugeMetricFamily(
            "stoker_observation_age_seconds", "Age of the last complete look (absent before the first)", labels=["host"]
        )
        strays = GaugeMetricFamily(
            "stoker_strays", "Processes that hold what a spec may need, by owner", labels=["host", "kind"]
        )
        drift = GaugeMetricFamily(
            "stoker_drift", "Fields that differ from the declared", labels=["host", "spec", "layer", "field"]
        )
        total = GaugeMetricFamily("stoker_drift_fields", "Number of differing fields", labels=["host", "layer"])
        watched = GaugeMetricFamily("stoker_watch_up", "1 while the host's systemd is heard", labels=["host"])
        signals = CounterMetricFamily(
            "stoker_watch_signals", "Signals of managed units that were heard", labels=["host"]
        )
        for host in sample.hosts:
            watched.add_metric([host.host], float(host.watched))
            signals.add_metric([host.host], host.signals)
            up.add_metric([host.host], float(host.up))
            if host.age_s is not None:
                age.add_metric([host.host], host.age_s)
            counts = dict(host.strays)
            for kind in STRAY_KINDS:
                strays.add_metric([host.host, kind], counts.get(kind, 0))
            for spec, layer, name in sorted(set(host.drift)):
                drift.add_metric([host.host, spec, layer, name], 1)
            for layer in LAYERS:
                total.add_metric([host.host, layer], sum(1 for _, of, _ in host.drift if of == layer))
        condition = GaugeMetricFamily(
            "stoker_condition", "1 for the condition's present status", labels=["kind", "name", "type", "status"]
        )
        for one in sample.conditions:
            for status in ("True", "False", "Unknown"):
                condition.add_metric([one.kind, one.name, one.type, status], float(one.status == status))
        return [up, watched, signals, age, strays, drift, total, condition]
