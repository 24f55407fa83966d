"""Why an engine failed, from the lines it left: the first root cause, not the loudest last line. Pure.

Called by the daemon when a start failed and by `stoker classify`. All text it returns is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from daemon.domain.status import Reason
from daemon.engines.catalogue import flags_of
from daemon.engines.failure_rules import EXCEPTION, GENERIC, SYMPTOM, Rule
from daemon.engines.failure_signs import LOG_CLOSED, OOM_HINTS, PHASES, RULES
from daemon.engines.redact import redact

MAX_LINE = 500
_MAX_READ = 8192  # of one line; nothing later in it names a cause
MAX_EVIDENCE = 6
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(r"\[?(?:\d{4}-\d\d-\d\d[ T])?(\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_EXCEPTION = re.compile(r"(?:^|[\s)\]])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: \S|:?$)")
_REFUSAL = re.compile(r"\b(?:ValueError|AssertionError|TypeError|NotImplementedError)\b")
_BEGUN = re.compile(r"Init (?:torch distributed|parallel) begin|Load weight begin|Initializing a V1 LLM engine")
_GRAPH_FAILED = re.compile(r"Capture .*graph failed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What was understood. `evidence` has the cause's line first; `retryable`: the same launch may work later."""

    reason: Reason
    line: str
    hint: str
    evidence: tuple[str, ...]
    kind: str = ""
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class _Hit:
    rule: Rule
    match: re.Match[str]
    line: str
    at: int
    phase: str


def classify(lines: Sequence[str], engine: str | None = None) -> Failure:
    """The root cause in the lines of one start, oldest first. Never raises; `Unclassified` when nothing is known.

    `engine` is whose flags a refused one is compared with; None: whichever the lines name.
    """
    clean = list(_clean(lines))
    if not clean:
        return Failure(Reason.UNCLASSIFIED, "", "there are no log lines", (), "empty")
    if all(LOG_CLOSED.search(line) or "systemd-journal" in line or "turn off this notice" in line for line in clean):
        hint = "the journal may not be read: add the SSH user to the group systemd-journal"
        return Failure(Reason.LOGS_UNAVAILABLE, _shown(clean[0]), hint, (_shown(clean[0]),), "journal")
    hits = list(_hits(clean))
    best = _best(hits)
    exception = (
        None if best is not None and best.rule.rank < EXCEPTION else _first_exception(clean, {hit.at for hit in hits})
    )
    if exception is not None:
        return _of_exception(exception, clean, hits)
    if best is None:
        return Failure(Reason.UNCLASSIFIED, _shown(clean[-1]), "", tuple(map(_shown, clean[:-4:-1])), "unknown")
    return _of_hit(best, clean, hits, engine)


def _clean(lines: Sequence[str]) -> Iterator[str]:
    """Without colours, blanks at the end and overwritten parts of progress bars."""
    for raw in lines:
        for part in re.split(r"[\r\n]", _ANSI.sub("", raw)):
            if part.strip() and part.strip() != "-- No entries --":
                yield part[:_MAX_READ].rstrip()


def _hits(lines: Sequence[str]) -> Iterator[_Hit]:
    """The nearest rule of each line that has one, with the phase of the start it fell in."""
    phase = ""
    for at, line in enumerate(lines):
        phase = next((name for name, pattern in PHASES if pattern.search(line)), phase)
        found = [(rule, match) for rule in RULES if (match := rule.pattern.search(line)) is not None]
        if found:
            rule, match = min(found, key=lambda pair: pair[0].rank)
            yield _Hit(rule, match, line, at, phase)


def _best(hits: Sequence[_Hit]) -> _Hit | None:
    """The lowest rank; among equals the earliest by the lines' own clocks, where all have one, else by order."""
    if not hits:
        return None
    rank = min(hit.rule.rank for hit in hits)
    equal = [hit for hit in hits if hit.rule.rank == rank]
    stamps = [_STAMP.search(hit.line[:60]) for hit in equal]
    if all(stamp is not None for stamp in stamps):
        return min(zip(equal, stamps, strict=True), key=lambda pair: (pair[1][1] if pair[1] else "", pair[0].at))[0]
    return equal[0]


def _first_exception(lines: Sequence[str], known: Set[int]) -> int | None:
    """Where the first Python exception's own line stands that no rule knows."""
    return next((at for at, line in enumerate(lines) if at not in known and _EXCEPTION.search(line)), None)


def _of_exception(at: int, lines: Sequence[str], hits: Sequence[_Hit]) -> Failure:
    """An exception that no rule knows: a refusal of settings before anything was begun, a crash after that."""
    refused = bool(_REFUSAL.search(lines[at])) and not any(_BEGUN.search(line) for line in lines[:at])
    evidence = _evidence(lines, at, hits)
    if refused:
        hint = "the engine refuses its settings before it loads anything"
        return Failure(Reason.INVALID_LAUNCH_ARGS, evidence[0], hint, evidence, "refused", retryable=False)
    return Failure(Reason.ENGINE_CRASHED, evidence[0], "", evidence, "exception")


def _of_hit(best: _Hit, lines: Sequence[str], hits: Sequence[_Hit], engine: str | None) -> Failure:
    evidence = _evidence(lines, best.at, hits)
    hint = _hint(best, lines, engine)
    return Failure(best.rule.reason, evidence[0], hint, evidence, best.rule.kind, best.rule.retryable)


def _hint(hit: _Hit, lines: Sequence[str], engine: str | None) -> str:
    groups = hit.match.groupdict()
    if hit.rule.kind == "gpu-oom":
        return OOM_HINTS["graphs" if _in_capture(hit, lines) else hit.phase]
    if groups.get("flag"):
        return _suggestion(groups["flag"], engine or ("vllm" if "vllm" in hit.line else "sglang"))
    whole = groups.get("whole") or groups.get("number")
    if whole is not None and hit.rule.kind == "parallelism" and 0 < int(whole) <= 1_000_000:
        count = int(whole)
        valid = [str(n) for n in range(1, min(count, 1024) + 1) if count % n == 0]
        return f"{hit.rule.hint} {count}: {', '.join(valid)}"
    return hit.rule.hint


def _in_capture(hit: _Hit, lines: Sequence[str]) -> bool:
    """In graph capture, also by what another rank says right after while the excerpt does not show the phase."""
    if _GRAPH_FAILED.search(hit.line):
        return True
    return hit.phase in ("", "graphs") and any(_GRAPH_FAILED.search(line) for line in lines[hit.at :])


def _suggestion(flag: str, engine: str) -> str:
    spelling = flag.split("=", 1)[0]
    flags = flags_of("vllm" if engine == "vllm" else "sglang", None)
    dashed = spelling.replace("_", "-")
    closest = dashed if flags.find(dashed) is not None and dashed != spelling else flags.closest(dashed)
    if closest is None or closest == spelling:
        return f"this version of the engine has no flag {spelling}"
    return f"did you mean {closest}?"


def _evidence(lines: Sequence[str], at: int, hits: Sequence[_Hit]) -> tuple[str, ...]:
    """The cause's line, then other telling lines in their order, then the last one; each once, bounded, redacted."""
    telling = [
        hit.at for hit in sorted(hits, key=lambda hit: (hit.rule.rank > SYMPTOM, hit.rule.rank >= GENERIC, hit.at))
    ]
    chosen = [at]
    for one in telling:
        if one not in chosen and len(chosen) < MAX_EVIDENCE - 1:
            chosen.append(one)
    if len(lines) - 1 not in chosen:
        chosen.append(len(lines) - 1)
    shown = [_shown(lines[chosen[0]]), *(_shown(lines[one]) for one in sorted(chosen[1:]))]
    return tuple(dict.fromkeys(shown))


def _shown(line: str) -> str:
    return redact(line)[:MAX_LINE]
