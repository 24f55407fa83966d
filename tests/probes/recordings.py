"""Whole answers to spoil: the reference look, one of a real test host, looks and a probe of simulated ones, and what
nvidia-smi printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from daemon import host
from daemon.domain.observation import Observation
from daemon.probes.report import SUMMED_FROM, Answer, Section, parse_answer, parse_observation
from daemon.verbs import request
from tests.probes.reference import NONCE, frame, sections
from tests.sim.driven import PATH, UNIT, Clock, sim_host

TESTS = Path(__file__).parent.parent
SERVER = (
    "[Service]\nType=exec\nEnvironment=CUDA_VISIBLE_DEVICES=0,1 STOKER_SPEC=s SPT_NOENV=1\n"
    "ExecStart=:/opt/venv/bin/python -m sglang.launch_server --model-path /models/m --port 30001 --tp-size 2\n"
    "[Install]\nWantedBy=multi-user.target\n"
)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One answer as it came, with its own nonce, and undamaged as it is understood."""

    name: str
    nonce: str
    raw: bytes
    answer: Answer

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """So that hypothesis names it, instead of printing every byte."""
        printer.text(self.name)

    @property
    def sections(self) -> Mapping[str, Section]:
        return self.answer.sections


def _recording(number: int, name: str, verb: str, parts: dict[str, tuple[int, bytes]], end: int = 0) -> Recording:
    nonce = f"{number:032x}"
    raw = frame(parts, verb, end, nonce, SUMMED_FROM)
    answer = parse_answer(raw, nonce)
    assert isinstance(answer, Answer)
    return Recording(name, nonce, raw, answer)


def _parts(raw: bytes, nonce: str = NONCE) -> dict[str, tuple[int, bytes]]:
    answer = parse_answer(raw, nonce)
    assert isinstance(answer, Answer), answer
    return {name: (section.exit_status, section.data) for name, section in answer.sections.items()}


def _simulated() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """A host that serves, the same with its launcher killed, and what a probe of the first one said."""
    clock = Clock()
    machine = sim_host(clock)
    machine.edit_file(PATH, SERVER, reload=True)
    machine.hand_start(UNIT)
    clock.now_s += 30
    machine.advance()

    def ask(verb: str, *lines: tuple[str, str], body: bytes = b"") -> dict[str, tuple[int, bytes]]:
        done = machine.answer((host.HELPER_PATH, verb), request(NONCE, lines, body))
        return _parts(done.stdout)

    look = (("unit", UNIT), ("port", "30001"), ("env", "CUDA_VISIBLE_DEVICES"))
    yield "observe", ask("observe", *look)
    probe = (("unit", UNIT), ("port", "30001"), ("url-path", "/v1/models"), ("method", "GET"), ("timeout-s", "5"))
    yield "probe", ask("probe", *probe)
    machine.kill_launcher(UNIT)
    yield "observe", ask("observe", *look)


@cache
def recordings() -> tuple[Recording, ...]:
    """All of them. Their nonces differ, as those of two answers always do."""
    real = _parts((TESTS / "bench/recorded/reference.answer").read_bytes())
    found = [("reference", "observe", sections()), ("test host", "observe", real)]
    found += [(f"simulated {verb}", verb, parts) for verb, parts in _simulated()]
    found.append(("refused", "signal", {"error": (0, b"the ground changed\n"), "result": (1, b"1000 900 gone\n")}))
    return tuple(_recording(*numbered) for numbered in ((n + 1, *each) for n, each in enumerate(found)))


@cache
def undamaged(one: Recording) -> Observation:
    """A look as it is understood."""
    seen = parse_observation(one.answer, "a", 1.0)
    assert isinstance(seen, Observation)
    return seen


@cache
def looks() -> tuple[Recording, ...]:
    return tuple(one for one in recordings() if one.answer.verb == "observe")


@cache
def probes() -> tuple[Recording, ...]:
    return tuple(one for one in recordings() if one.answer.verb == "probe")


@cache
def driver_texts() -> tuple[bytes, ...]:
    """What nvidia-smi printed: the field cases, and recordings of a machine with two cards, tables and all."""
    told = [path.read_bytes() for path in sorted((TESTS / "golden/nvidia_smi").glob("*.txt"))]
    for name in ("busy", "smi-idle"):
        entries = json.loads((TESTS / f"hosts/recorded/{name}.json").read_bytes())
        told += [entry["output"].encode() for entry in entries if entry["command"].startswith("nvidia-smi")]
    return tuple(told)
