"""A fleet as the API would show it, for tests of the demo's story and screen: built by hand, changed by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from api.cli.demo_fleet import Fleet
from daemon.domain.status import Reason
from daemon.sim.faults import Fault

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def said(kind: str, status: str, turned: float = -60.0, reason: str = "OK") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": at(turned).isoformat(),
    }


def event(number: int, seconds: float, reason: str, message: str, **more: Any) -> dict[str, Any]:
    stamp = at(seconds).isoformat()
    return {
        "id": number, "kind": "ServingSpec", "name": "deepseek", "severity": "Warning", "reason": reason,
        "message": message, "action": "", "result": "", "evidence": "", "count": 1, "firstTimestamp": stamp,
        "lastTimestamp": stamp, **more,
    }  # fmt: skip


def spec(name: str, host: str, gpus: list[int], ready: dict[str, Any], **instance: Any) -> dict[str, Any]:
    one = {
        "role": "server",
        "host": host,
        "ready": ready["status"],
        "active": "active/running",
        "drift": [],
        **instance,
    }
    return {
        "metadata": {"name": name},
        "spec": {"placement": {"host": host, "gpus": gpus}, "port": 30000},
        "status": {"conditions": [ready, said("Drifted", "False")], "instances": [one]},
    }


def host(
    name: str, clean: dict[str, Any], strays: list[dict[str, Any]] | None = None, cards: int = 8
) -> dict[str, Any]:
    conditions = [said(kind, "True") for kind in ("Reachable", "Observed", "GPUsReady", "Acting")]
    return {
        "metadata": {"name": name},
        "spec": {"gpus": {"count": cards}},
        "status": {
            "conditions": [*conditions, clean], "gpus": [{"index": n} for n in range(cards)], "strays": strays or [],
        },
    }  # fmt: skip


def fleet(
    *events: dict[str, Any], ready: dict[str, Any] | None = None, clean: dict[str, Any] | None = None, **instance: Any
) -> Fleet:
    """One host, one spec over its eight cards; `events` in the order of their ids."""
    one = spec("deepseek", "gpu-1", list(range(8)), ready or said("Ready", "True", reason="Generated"), **instance)
    hosts = {"gpu-1": host("gpu-1", clean or said("Clean", "True", reason="Clean"))}
    return Fleet(hosts, {"deepseek": one}, tuple(reversed(events)))


def fault(**more: Any) -> Fault:
    told = (Reason.ENGINE_CRASHED, Reason.ORPHAN_WORKERS)
    return Fault("crash", "an engine dies", "gpu-1", "deepseek", told, lambda: "pid 7 is killed", **more)
