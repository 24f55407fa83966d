"""Specs for these tests, from the manifest's own text."""

from __future__ import annotations

from typing import Any

import yaml

from daemon.domain.spec import Role, ServingSpec
from daemon.engines.launch import Launch, Peer, render
from daemon.engines.unit import Marks

KIMI = """
engine: {name: sglang, python: /opt/venv/bin/python, version: "0.5.23"}
user: serve
model: {path: /models/Kimi-K2.6, servedName: kimi-k2.6, trustRemoteCode: true}
parallelism: {tensor: 8}
contextLength: 32768
memoryFraction: 0.85
maxRunningRequests: 64
speculative: {algorithm: DDTREE, draftModel: /models/Kimi-K2.6-DFlash, blockSize: 8, draftWindow: 2048}
args: {page-size: 1, attention-backend: triton}
env: {SGLANG_ENABLE_SPEC_V2: "1"}
placement: {host: gpu-a, gpus: [0, 1, 2, 3, 4, 5, 6, 7]}
port: 30001
readiness: {kind: chat}
"""
PAIR = """
engine: {name: sglang, python: /opt/venv/bin/python, version: "0.5.23"}
model: {path: /models/glm, servedName: glm}
args: {page-size: 64}
roles:
  prefill: {placement: {host: gpu-a, gpus: [0, 1]}, port: 30010, bootstrapPort: 8990, parallelism: {tensor: 2}}
  decode: {placement: {host: gpu-b, gpus: [0, 1]}, port: 30011, parallelism: {tensor: 2}, memoryFraction: 0.8}
  router: {placement: {host: gpu-a}, port: 30000, args: {policy: round_robin}}
"""
VLLM = """
engine: {name: vllm, python: /opt/vllm/bin/python3, version: "0.33.0"}
model: {path: Qwen/Qwen3-8B, servedName: qwen}
speculative: {algorithm: DFLASH, draftModel: z-lab/Qwen3-8B-DFlash-b16, blockSize: 16}
placement: {host: gpu-a, gpus: [3]}
port: 8000
"""
CUSTOM = """
engine: {name: custom, command: [/opt/llama/llama-server, -m, /models/tiny.gguf, --port, "9000"]}
workingDirectory: /srv/work dir/50%
placement: {host: gpu-a, gpus: [1]}
readiness: {kind: http, path: /health}
port: 9000
"""
MARKS = Marks(store="store-uid", spec="spec-uid", launch_hash="v1:0123")
PEERS = (
    Peer("decode", "192.0.2.11", 30011),
    Peer("prefill", "192.0.2.10", 30010, 8990),
    Peer("prefill", "2001:db8::1", 30010),
)


def spec_of(text: str, **changes: Any) -> ServingSpec:
    """The spec of a manifest's text, its camelCase top-level fields replaced or (None) left out."""
    fields = {**yaml.safe_load(text), **changes}
    return ServingSpec.model_validate({key: value for key, value in fields.items() if value is not None})


def launched(spec: ServingSpec, role: Role = "server") -> Launch:
    """The launch of one role on cards with made-up UUIDs."""
    view = spec.role_view(role)
    indexes = view.placement.gpus if view.placement else ()
    return render(view, role, tuple((index, f"GPU-{index}") for index in indexes), spec, PEERS)
