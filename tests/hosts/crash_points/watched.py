"""The daemon's two outsides with a recorder on them: the roads to hosts, and the commits of the store.

Put together by `launcher`. Nothing here changes a request, an answer or a write.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from daemon.domain.host import HostSpec
from daemon.domain.status import Event
from daemon.ssh import Finished, Road, Roads, SshSettings
from daemon.store import Store
from daemon.store.database import Tx
from tests.hosts.crash_points.recorder import Recorder, Stage, die

T = TypeVar("T")
LOOKS = ("observe", "probe", "journal", "version", "run look")
IN_FLIGHT_S = 0.03
_TURNED = ("Ready", "Reachable", "Observed", "GPUsReady", "Clean", "Acting")


class WatchedRoads(Roads):
    """The pool, giving out watched roads."""

    def __init__(self, settings: SshSettings, recorder: Recorder) -> None:
        super().__init__(settings, lambda name: None)
        self._recorder = recorder

    def road(self, host: str, spec: HostSpec) -> Road:
        return WatchedRoad(super().road(host, spec), self._recorder)


class WatchedRoad:
    """One road. A command is noted when it is sent, if it changes something, and when its answer arrived."""

    def __init__(self, road: Road, recorder: Recorder) -> None:
        self._road, self._recorder = road, recorder

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        name, facts = command(verb, stdin)
        self._leaving(name, facts)
        answer = await self._road.call(verb, stdin, timeout_s)
        self._recorder.passed(name, "answered", facts)
        return answer

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        name = f"run {argv[3]}" if len(argv) > 3 else f"run {argv[0]}"
        self._leaving(name, {})
        done = await self._road.run(argv, stdin, timeout_s)
        self._recorder.passed(name, "answered", {})
        return done

    async def close(self) -> None:
        await self._road.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._road, name)

    def _leaving(self, name: str, facts: dict[str, Any]) -> None:
        stage: Stage = "sent"
        if name not in LOOKS and self._recorder.note(name, stage, facts):
            asyncio.get_running_loop().call_later(IN_FLIGHT_S, die)


def command(verb: str, stdin: bytes) -> tuple[str, dict[str, Any]]:
    """A verb's name among the points, and of a signal whom it is for."""
    head = stdin.partition(b"\n.\n")[0].decode()
    lines = [line.partition(" ")[::2] for line in head.split("\n")]
    values = dict(lines)
    if verb == "signal":
        targets = [[int(word) for word in value.split()] for key, value in lines if key == "target"]
        return f"signal-{values['signal'].lower()}", {"boot": values["boot"], "targets": targets}
    if verb in LOOKS or "unit" not in values:
        return verb, {}
    return f"{verb} {values['unit']}", {"invocation": values.get("ground-invocation", "")}


def watched_store(recorder: Recorder) -> type[Store]:
    """A store whose commits are noted when they are durable, and only those that changed a row."""

    class WatchedStore(Store):
        def _committed(self, body: Callable[[Tx], T]) -> Any:
            changed: list[int] = []

            def counted(tx: Tx) -> T:
                file = tx.connection.connection.dbapi_connection
                before = file.total_changes  # type: ignore[union-attr]
                result = body(tx)
                changed.append(file.total_changes - before)  # type: ignore[union-attr]
                return result

            done = super()._committed(counted)
            if changed[-1]:
                name, facts = write(body)
                recorder.passed(name, "committed", facts)
            return done

    return WatchedStore


def write(body: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """A write's name among the points, without what depends on the moment, and that as facts."""
    method = body.__qualname__.split(".<locals>")[0].rpartition(".")[2]
    held = _held(body)
    match method:
        case "add_event":
            return _event(held["event"])
        case "put_status":
            ready = held["wanted"].get("Ready")
            return "status Host" if ready is None else "status ServingSpec", {"said": str(ready and ready.reason)}
        case "change_instance":
            return _change(_held(held["wanted"])["change"])
        case "put" | "delete":
            return f"{method} {held['kind']} {held['name']}", {}
        case "note_correction":
            return f"correction {held['values']['kind']}", {}
        case _:
            return method, {}


def _event(event: Event) -> tuple[str, dict[str, Any]]:
    """An action's event by the action, one of a condition that turned by the condition, any other by its reason."""
    turned = next((word for word in _TURNED if re.search(rf"\b{word} (True|False|Unknown), ", event.message)), "")
    return f"event {event.action or turned or event.reason}", {"said": str(event.reason)}


def _change(change: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """What of an instance's row is noted: `state`, `started`, `written`, `ready`, `held`."""
    name = change.__qualname__.rpartition(".")[2]
    held = _held(change)
    if name != "<lambda>":
        return f"instance {name}", {}
    value = held["value"]
    return f"instance {held['key']}", {"said": value["reason"] if isinstance(value, dict) else str(value)}


def _held(body: Callable[..., Any]) -> dict[str, Any]:
    return dict(inspect.getclosurevars(body).nonlocals)
