"""vLLM's argv from a spec: `python BIN/vllm serve MODEL …`.

Called by `launch` and `check`. The interpreter is spelled out: that is what the kernel makes of the script's first
line, so argv on disk and in /proc are the same. Flag facts: vLLM 0.12.0, 0.20.2 and 0.33.0, from their parsers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from posixpath import dirname, join

from daemon.domain.spec import ServingSpec, Speculative
from daemon.engines.arguments import Option, merged, option
from daemon.engines.catalogue import Flags, flags_of

SPECULATIVE = "--speculative-config"


def argv(view: ServingSpec) -> tuple[str, ...]:
    """The whole argv. The model comes first: flags with several values would swallow it."""
    flags = flags_of("vllm", view.engine.version)
    python = view.engine.python or ""
    model = () if view.model is None else (view.model.path,)
    return (python, join(dirname(python), "vllm"), "serve", *model, *merged(flags, options(flags, view), view.args))


def options(flags: Flags, view: ServingSpec) -> Iterator[Option]:
    """Every flag that the spec's fields ask for, in the order of the argv."""
    if view.model is not None and view.model.served_name is not None:
        yield option(flags, "model.servedName", "--served-model-name", view.model.served_name)
    yield option(flags, "listen", "--host", view.listen)
    if view.port is not None:
        yield option(flags, "port", "--port", view.port)
    if view.model is not None and view.model.trust_remote_code:
        yield option(flags, "model.trustRemoteCode", "--trust-remote-code")
    yield from _parallelism(flags, view)
    yield from _limits(flags, view)
    if view.speculative is not None:
        yield option(flags, "speculative", SPECULATIVE, speculative_json(view.speculative))


def _parallelism(flags: Flags, view: ServingSpec) -> Iterator[Option]:
    sizes = view.parallelism
    yield option(flags, "parallelism.tensor", "--tensor-parallel-size", sizes.tensor)
    if sizes.pipeline > 1:
        yield option(flags, "parallelism.pipeline", "--pipeline-parallel-size", sizes.pipeline)
    if sizes.data > 1:
        yield option(flags, "parallelism.data", "--data-parallel-size", sizes.data)
    if sizes.expert is not None and sizes.expert > 1:  # a switch here: the size is tensor x data
        yield option(flags, "parallelism.expert", "--enable-expert-parallel")


def _limits(flags: Flags, view: ServingSpec) -> Iterator[Option]:
    if view.context_length is not None:
        yield option(flags, "contextLength", "--max-model-len", view.context_length)
    if view.memory_fraction is not None:
        yield option(flags, "memoryFraction", "--gpu-memory-utilization", view.memory_fraction)
    if view.max_running_requests is not None:
        yield option(flags, "maxRunningRequests", "--max-num-seqs", view.max_running_requests)


def speculative_json(wanted: Speculative) -> str:
    """vLLM's speculative configuration, keys sorted, without spaces: one spec, one text."""
    found: dict[str, str | int] = {"method": wanted.algorithm.lower()}
    if wanted.draft_model is not None:
        found["model"] = wanted.draft_model
    tokens = speculative_tokens(wanted)
    if tokens is not None:
        found["num_speculative_tokens"] = tokens
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def speculative_tokens(wanted: Speculative) -> int | None:
    """Tokens proposed at a time. A block counts one more than vLLM does (its model cards: 15 for a block of 16)."""
    if wanted.num_draft_tokens is not None:
        return wanted.num_draft_tokens
    if wanted.block_size is not None:
        return max(1, wanted.block_size - 1)
    return wanted.num_steps
