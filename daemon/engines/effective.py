"""What an engine says of itself once it serves, against what was declared: the layer `effective` of drift.

Only fields that a spec declares and an engine gives back as they were declared: others are filled in or rewritten on
the way (SGLang 0.5.23: draft tokens, running requests, data parallelism under attention). SGLang's answer also holds
its keys: nothing but the named fields leaves this module. Sources: SGLang 0.5.6 to 0.5.23 and vLLM 0.12 to 0.33.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from daemon.domain.observation import Unknown
from daemon.domain.spec import Role, ServingSpec
from daemon.domain.status import Reason

# field of ours → (the engine's flags, any of which in `args` is the last word; its name in the answer)
_SGLANG = {
    "model.path": (("model-path", "model"), "model_path"),
    "model.servedName": (("served-model-name",), "served_model_name"),
    "contextLength": (("context-length",), "context_length"),
    "parallelism.tensor": (("tp-size", "tensor-parallel-size", "tp"), "tp_size"),
    "parallelism.pipeline": (("pp-size", "pipeline-parallel-size", "pp"), "pp_size"),
}
_VLLM = {
    "model.path": (("model",), "root"),
    "model.servedName": (("served-model-name",), "id"),
    "contextLength": (("max-model-len",), "max_model_len"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """One field as the engine has it in effect, and as it was declared."""

    field: str
    declared: str
    observed: str


def question(view: ServingSpec, role: Role) -> str | None:
    """The path that tells it; None where nothing does: a router, another engine."""
    if role == "router":
        return None
    return {"sglang": "/server_info", "vllm": "/v1/models"}.get(view.engine.name)


def claims(view: ServingSpec, status: int, body: bytes) -> tuple[Claim, ...] | Unknown:
    """The declared fields that the answer tells, or why it tells none."""
    if status != 200:
        return Unknown(Reason.PROBE_REFUSED, f"HTTP {status}: the engine does not tell what is in effect")
    try:
        said = _facts(view, json.loads(body))
    except (ValueError, LookupError, TypeError, RecursionError):
        return Unknown(Reason.UNPARSABLE, "the engine's answer about itself could not be read")
    return tuple(_claims(view, said))


def _facts(view: ServingSpec, said: Any) -> dict[str, Any]:
    facts = said["data"][0] if view.engine.name == "vllm" else said
    if not isinstance(facts, dict):
        raise TypeError
    return facts


def _claims(view: ServingSpec, said: dict[str, Any]) -> Iterator[Claim]:
    table = _VLLM if view.engine.name == "vllm" else _SGLANG
    for field, declared in _declared(view):
        flags, name = table.get(field, ((), ""))
        observed = said.get(name)
        if name and isinstance(observed, str | int) and not any(flag in view.args for flag in flags):
            yield Claim(field, str(declared)[:200], str(observed)[:200])


def _declared(view: ServingSpec) -> Iterator[tuple[str, object]]:
    if view.model is not None:
        yield "model.path", view.model.path
        yield "model.servedName", view.served_name
    if view.context_length is not None:
        yield "contextLength", view.context_length
    yield "parallelism.tensor", view.parallelism.tensor
    yield "parallelism.pipeline", view.parallelism.pipeline
