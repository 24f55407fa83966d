"""A recorded reference look and what was declared when it was taken; read without root, recorded on the real host."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daemon.declared import HostDeclaration
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.planner.desired import place
from daemon.planner.plan import Plan, decide
from daemon.planner.world import Declared, Desired, ProbeFact, Record, World
from daemon.probes.report import Answer, parse_answer, parse_observation
from tests.probes.reference import summed

FOLDER = Path(__file__).parent / "recorded"
NONCE = "0123456789abcdef0123456789abcdef"
_IDS = re.compile(rb"^(boot_id|machine_id)=([0-9a-f-]+)$", re.MULTILINE)
_SUM = re.compile(rb"@[0-9a-f]{32} sum [0-9a-f]{64}\n\Z")


@dataclass(frozen=True)
class Recorded:
    """An answer with the declaration that it satisfies."""

    raw: bytes
    store: str
    host: HostSpec
    declared: tuple[Declared, ...]

    def observation(self) -> Observation:
        answer = parse_answer(self.raw, NONCE)
        assert isinstance(answer, Answer), answer
        look = parse_observation(answer, "a", 0.0)
        assert isinstance(look, Observation), look
        return look

    def plan(self, memory: HostMemory, now_s: float) -> tuple[Plan, Observation]:
        """From the bytes to the plan, as one pass of the daemon does it."""
        answer = parse_answer(self.raw, NONCE)
        assert not isinstance(answer, Unknown)
        look = parse_observation(answer, "a", now_s)
        assert not isinstance(look, Unknown)
        memory.see(look, now_s)
        placed = [place(one, look, self.store) for one in self.declared]
        desired = tuple(one for one in placed if isinstance(one, Desired))
        for one in desired:
            memory.note_held(one)
        world = World(
            name="a", host=self.host, store_uid=self.store, now_s=now_s, observation=look, desired=desired,
            strays=dict(memory.strays), probes=dict(memory.probes), held_before=frozenset(memory.held_before),
            cards=dict(memory.cards),
        )  # fmt: skip
        return decide(world), look

    def save(self) -> None:
        """Writes it, without what names this machine; the sum behind it becomes that of what is written."""
        FOLDER.mkdir(exist_ok=True)
        said = _IDS.sub(lambda found: found[1] + b"=" + re.sub(rb"[0-9a-f]", b"a", found[2]), self.raw)
        (FOLDER / "reference.answer").write_bytes(summed(_SUM.sub(b"", said), NONCE))
        host = self.host.model_dump(mode="json", by_alias=True, exclude_unset=True) | {"ssh": {"address": "192.0.2.1"}}
        facts = {"store": self.store, "host": host, "declared": [_facts(one) for one in self.declared]}
        (FOLDER / "reference.json").write_text(json.dumps(facts, indent=1) + "\n")


def recorded_of(raw: bytes, store: str, declared: HostDeclaration) -> Recorded:
    return Recorded(raw, store, declared.spec, declared.declared)


def load() -> Recorded:
    """The reference look as it is kept beside this file."""
    facts = json.loads((FOLDER / "reference.json").read_text())
    declared = tuple(_declared(one) for one in facts["declared"])
    raw = (FOLDER / "reference.answer").read_bytes()
    return Recorded(raw, facts["store"], HostSpec.model_validate(facts["host"]), declared)


def generated(look: Observation, now_s: float) -> dict[str, ProbeFact]:
    """That each unit seen has generated just now, so that no probe is due."""
    assert not isinstance(look.units, Unknown)
    return {unit.name: ProbeFact(unit.invocation_id, now_s, True, Reason.OK, "") for unit in look.units}


def _facts(one: Declared) -> dict[str, Any]:
    return {
        "name": one.spec_name, "uid": one.spec_uid, "generation": one.generation, "role": one.role,
        "spec": one.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "record": None if one.record is None else asdict(one.record),
    }  # fmt: skip


def _declared(facts: dict[str, Any]) -> Declared:
    spec = ServingSpec.model_validate(facts["spec"])
    record = facts["record"] | {"gpus": tuple((index, uuid) for index, uuid in facts["record"]["gpus"])}
    view = spec.role_view(facts["role"])
    return Declared(facts["name"], facts["uid"], facts["generation"], facts["role"], spec, view, Record(**record))
