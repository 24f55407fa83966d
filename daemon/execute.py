"""Carries out a plan, one action after the other, each fenced and on its ground; stops at the first that does not work.

Every action, refusal and failure becomes an event with its evidence (law 8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from daemon.domain.actions import Action, PutUnit, RemoveUnit, SetAside, Signal, SweepShm, UnitVerb, kind_of
from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Fence
from daemon.probes.report import Answer
from daemon.verbs import Asks, ask, fence_text

Result = Literal["ok", "refused", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Done:
    """How one action ended. `unknown`: the road broke, it may have had its effect; the next look tells.

    `told` is what the host said of each target of a signal, by pid: ok, gone, changed (another start), moved (another
    cgroup), protected or failed.
    """

    action: Action
    result: Result
    evidence: str = ""
    reason: str = ""
    told: tuple[tuple[int, str], ...] = ()


async def execute(road: Asks, action: Action, fence: Fence, boot_id: str, timeout_s: float) -> Done:
    """One action. Never raises for what the host or the road did."""
    lines = [("fence", fence_text(fence)), ("boot", boot_id), *_lines(action)]
    body, gate = _bodies(action)
    try:
        answer = await ask(road, _verb(action), lines, timeout_s=timeout_s, body=body, gate=gate)
    except VerbRefused as refused:
        return Done(action, "refused", refused.message, refused.reason)
    except VerbFailed as failed:
        return Done(action, "failed", str(failed))
    except TransportError as error:
        result: Result = "unknown" if error.maybe_done else "failed"
        return Done(action, result, error.message, error.reason)
    said = _evidence(answer)
    if isinstance(action, Signal):
        return Done(action, "ok", said, told=_told(answer))
    return Done(action, "ok", f"{said}\n{action.excerpt}" if isinstance(action, SetAside) else said)


def _bodies(action: Action) -> tuple[bytes, bytes]:
    """What follows the lines: a unit's text and its gate's; for a signal the cgroup of each target, one a line.

    A helper of version 2 takes the latter and does not read it.
    """
    match action:
        case PutUnit():
            return action.text.encode(), action.gate.encode()
        case Signal():
            return "".join(f"{group}\n" for group in action.cgroups).encode(), b""
        case _:
            return b"", b""


def _told(answer: Answer) -> tuple[tuple[int, str], ...]:
    section = answer.sections.get("result")
    lines = b"" if section is None else section.data
    words = [line.split(" ") for line in lines.decode("ascii", "replace").splitlines()]
    return tuple((int(pid[0]), pid[1]) for pid in words if len(pid) == 2 and pid[0].isdigit() and pid[0].isascii())


def _verb(action: Action) -> str:
    return "signal" if isinstance(action, Signal) else kind_of(action)


def _lines(action: Action) -> Iterable[tuple[str, str]]:
    match action:
        case PutUnit():
            yield "unit", action.unit
            yield "path", action.path
            yield "ground", action.ground_sha256 or "-"
        case SetAside():
            yield "unit", action.unit
            yield "path", action.path
            yield "ground", action.ground_sha256
        case RemoveUnit():
            yield "unit", action.unit
            yield "path", action.path
            yield "ground", action.ground_sha256 or "-"
        case UnitVerb():
            yield "unit", action.unit
            yield "ground-invocation", action.ground.invocation_id or "-"
            yield "ground-state", action.ground.active_state
        case SweepShm():
            yield "unit", action.unit
            yield "ground-invocation", action.ground.invocation_id or "-"
            yield "ground-state", action.ground.active_state
            yield from (("target", " ".join(map(str, file))) for file in action.files)
        case Signal():
            yield "signal", action.signal
            yield from (("target", f"{target.pid} {target.start_ticks}") for target in action.targets)


def _evidence(answer: Answer) -> str:
    section = answer.sections.get("result")
    return "" if section is None else section.data.decode("utf-8", "replace").strip()[:2000]
