"""Evidence from a unit's journal: the last lines of one invocation, redacted, and the reason they show.

Called by `reconcile` when a unit turned; a journal that cannot be read is said so, never "no errors".
"""

from __future__ import annotations

from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Reason
from daemon.engines.failures import classify
from daemon.engines.redact import redact
from daemon.probes.kernel_log import victims
from daemon.verbs import Asks, ask

LINES = 200
SHOWN = 25
TIMEOUT_S = 6.0
RECENT_S = 120.0
_PERHAPS_OOM = frozenset({Reason.KILLED_BY_SIGNAL, Reason.EXITED, Reason.HOST_OOM, Reason.ENGINE_CRASHED})


async def evidence_of(road: Asks, unit: str, invocation: str | None, look: Observation) -> tuple[str, Reason]:
    """The last lines of that invocation (None: of the unit) for a person, and the class they show."""
    text, reason = await _journal_of(road, unit, invocation)
    return with_victims(text, reason, look, unit)


async def _journal_of(road: Asks, unit: str, invocation: str | None) -> tuple[str, Reason]:
    lines = [("unit", unit), ("lines", str(LINES))]
    if invocation:
        lines.append(("invocation", invocation))
    try:
        answer = await ask(road, "journal", lines, timeout_s=TIMEOUT_S)
    except (TransportError, VerbFailed, VerbRefused) as error:
        return f"journal not readable: {error}", Reason.LOGS_UNAVAILABLE
    section = answer.sections.get("journal")
    if section is None or section.exit_status != 0:
        return "journal not readable", Reason.LOGS_UNAVAILABLE
    text = redact(section.data.decode("utf-8", "replace")).replace("\r", "\n")
    found = [line for line in text.splitlines() if line.strip()]
    if not found:
        return "the journal holds no line of it", Reason.EXITED
    failure = classify(found)
    reason = Reason.EXITED if failure.reason is Reason.UNCLASSIFIED else failure.reason
    return "\n".join([failure.line, *found[-SHOWN:]] if failure.line else found[-SHOWN:]), reason


def with_victims(text: str, reason: Reason, look: Observation, unit: str) -> tuple[str, Reason]:
    """The same, with whom the kernel ended of that unit for want of memory shortly before the look (case D15).

    A signal alone proves nothing: people and watchdogs send KILL too. A kernel log that cannot be read changes nothing.
    """
    if isinstance(look.kernel, Unknown) or reason not in _PERHAPS_OOM:
        return text, reason
    since_s = look.identity.monotonic_us / 1e6 - RECENT_S
    found = [kill for kill in victims(look.kernel.kills, unit) if kill.at_s is not None and kill.at_s >= since_s]
    told = [f"kernel: out of memory: killed process {kill.pid} ({_plain(kill.comm)})" for kill in found]
    return ("\n".join([*told, text]), Reason.HOST_OOM) if told else (text, reason)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
