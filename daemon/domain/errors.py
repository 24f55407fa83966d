"""Every error Stoker raises on purpose, from its cause.

A message says what, where and what to do. Modules above raise these; the worker's edge in `controller` and the
error handlers in `api` are the only places that catch `StokerError` broadly.
"""

from __future__ import annotations

from dataclasses import dataclass


class StokerError(Exception):
    """Base of all errors that Stoker raises on purpose."""


def ended(exit_status: int, said: str) -> str:
    """How a command ended, with the last of what it said, where it said anything."""
    told = said.strip()
    return f"exit status {exit_status}: {told}" if told else f"exit status {exit_status}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest: `path` is dotted camelCase (`spec.placement.gpus[1]`), `hint` what to do."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class AdmissionError(StokerError):
    """A manifest was refused; nothing was stored."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class NotFound(StokerError):
    """An object named by kind and name does not exist."""


class Conflict(StokerError):
    """The object changed since the caller read it, or its name is taken by something else."""


class StoreError(StokerError):
    """The store's file is missing, of another schema version, or not ours."""


class TransportError(StokerError):
    """The road to a host failed. `maybe_done` is True when a started command may have had its effect."""

    def __init__(self, reason: str, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.maybe_done = maybe_done


class VerbRefused(StokerError):
    """`stoker-host` refused a verb without doing anything: see `daemon.host` for the exit statuses."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class VerbFailed(StokerError):
    """`stoker-host` tried a verb and it failed; `evidence` is the bounded, redacted tail of what it printed."""

    def __init__(self, exit_status: int, evidence: str) -> None:
        super().__init__(ended(exit_status, evidence))
        self.exit_status = exit_status
        self.evidence = evidence
