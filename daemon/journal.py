"""Evidence from a unit's journal: the last lines of one invocation, redacted, and the reason they show.

Called by `reconcile` when a unit turned; a journal that cannot be read is said so, never "no errors".
"""

from __future__ import annotations

from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.status import Reason
from daemon.engines.failures import classify
from daemon.engines.redact import redact
from daemon.verbs import Asks, ask

LINES = 200
SHOWN = 25
TIMEOUT_S = 6.0


async def evidence_of(road: Asks, unit: str, invocation: str | None) -> tuple[str, Reason]:
    """The last lines of that invocation (None: of the unit) for a person, and the class they show."""
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
