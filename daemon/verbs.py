"""One question to `stoker-host` and its framed answer: the only place that speaks its protocol's sending side.

Used by `observe`, `execute`, `ready` and `lease`. Exit statuses become exceptions here, once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Protocol

from daemon import host
from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Fence, Unknown
from daemon.domain.status import Reason
from daemon.engines.redact import redact
from daemon.probes.report import Answer, parse_answer

Lines = Iterable[tuple[str, str]]

_REFUSED = {
    host.EXIT_GROUND_CHANGED: Reason.GROUND_CHANGED,
    host.EXIT_FENCED: Reason.FENCED_OFF,
    host.EXIT_HELD: Reason.HELD,
}


class Asks(Protocol):
    """The part of a road that verbs need."""

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        """stdout of `stoker-host VERB`; raises TransportError."""


def fence_text(fence: Fence) -> str:
    """As `stoker-host` reads and prints it: STORE EPOCH RUN."""
    return f"{fence.store} {fence.epoch} {fence.run}"


def request(nonce: str, lines: Lines, body: bytes = b"", gate: bytes = b"") -> bytes:
    """The standard input of a verb. Raises ValueError on a value with a line break, which would forge a line."""
    head = [("nonce", nonce), *lines]
    if body:
        head.append(("body", str(len(body))))
    if gate:
        head.append(("gate", str(len(gate))))
    for key, value in head:
        if "\n" in value or "\r" in value or "\0" in value:
            raise ValueError(f"line break in the value of {key}")
    text = "".join(f"{key} {value}\n" for key, value in head) + ".\n"
    return text.encode() + body + gate


async def ask(road: Asks, verb: str, lines: Lines, *, timeout_s: float, body: bytes = b"", gate: bytes = b"") -> Answer:
    """One verb, answered in full with exit status 0.

    Raises TransportError (the answer is incomplete: the verb may have had its effect), VerbRefused (nothing was done)
    or VerbFailed (it was tried).
    """
    nonce = secrets.token_hex(16)
    raw = await road.call(verb, request(nonce, lines, body, gate), timeout_s)
    answer = parse_answer(raw, nonce)
    if isinstance(answer, Unknown):
        raise TransportError(answer.reason, answer.detail, maybe_done=True)
    if answer.exit_status == 0:
        return answer
    said = _error(answer)
    refused = _REFUSED.get(answer.exit_status)
    if refused is not None:
        raise VerbRefused(refused, said)
    raise VerbFailed(answer.exit_status, said)


def _error(answer: Answer) -> str:
    section = answer.sections.get("error")
    text = section.data.decode("utf-8", "replace") if section is not None else f"{answer.verb} gave no reason"
    return redact(text.strip())[:2000]
