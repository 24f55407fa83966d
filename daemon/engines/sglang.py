"""SGLang's argv from a spec: `python -m sglang.launch_server …`, a lone server or one side of a prefill/decode pair.

Called by `launch` and `check`. Flag facts: SGLang 0.5.6, 0.5.12 and 0.5.23, from their parsers.
"""

from __future__ import annotations

from collections.abc import Iterator

from daemon.domain.spec import ModelSource, Role, ServingSpec, Speculative
from daemon.engines.arguments import Option, merged, option
from daemon.engines.catalogue import Flags, flags_of

DEFAULT_BOOTSTRAP_PORT = 8998  # SGLang's own default for a prefill server
TP = ("--tp-size", "--tensor-parallel-size")
PP = ("--pp-size", "--pipeline-parallel-size")
DP = ("--dp-size", "--data-parallel-size")
EP = ("--ep-size", "--expert-parallel-size")


def argv(view: ServingSpec, role: Role, spec: ServingSpec) -> tuple[str, ...]:
    """The whole argv of one role's server."""
    flags = flags_of("sglang", view.engine.version)
    head = (view.engine.python or "", "-m", "sglang.launch_server")
    return (*head, *merged(flags, options(flags, view, role, spec), view.args))


def options(flags: Flags, view: ServingSpec, role: Role, spec: ServingSpec) -> Iterator[Option]:
    """Every flag that the spec's fields ask for, in the order of the argv."""
    if view.model is not None:
        yield from _model(flags, view.model)
    yield option(flags, "listen", "--host", view.listen)
    if view.port is not None:
        yield option(flags, "port", "--port", view.port)
    yield from _parallelism(flags, view)
    yield from _limits(flags, view)
    if view.speculative is not None:
        yield from _speculative(flags, view.speculative)
    if view.metrics:
        yield option(flags, "metrics", "--enable-metrics")
    if role in ("prefill", "decode"):
        yield option(flags, "", "--disaggregation-mode", role)
        yield option(flags, "bootstrapPort", "--disaggregation-bootstrap-port", bootstrap_port(spec, role))


def bootstrap_port(spec: ServingSpec, role: Role) -> int:
    """The port of a role's bootstrap server. A decode server without its own names the prefill side's."""
    roles = spec.roles or {}
    own = roles.get("decode") if role == "decode" else None
    for override in (own, roles.get("prefill")):
        if override is not None and override.bootstrap_port is not None:
            return override.bootstrap_port
    return DEFAULT_BOOTSTRAP_PORT


def _model(flags: Flags, model: ModelSource) -> Iterator[Option]:
    yield option(flags, "model.path", ("--model-path", "--model"), model.path)
    if model.served_name is not None:
        yield option(flags, "model.servedName", "--served-model-name", model.served_name)
    if model.trust_remote_code:
        yield option(flags, "model.trustRemoteCode", "--trust-remote-code")


def _parallelism(flags: Flags, view: ServingSpec) -> Iterator[Option]:
    sizes = view.parallelism
    yield option(flags, "parallelism.tensor", TP, sizes.tensor)
    if sizes.pipeline > 1:
        yield option(flags, "parallelism.pipeline", PP, sizes.pipeline)
    if sizes.data > 1:
        yield option(flags, "parallelism.data", DP, sizes.data)
    if sizes.expert is not None:
        yield option(flags, "parallelism.expert", EP, sizes.expert)


def _limits(flags: Flags, view: ServingSpec) -> Iterator[Option]:
    if view.context_length is not None:
        yield option(flags, "contextLength", "--context-length", view.context_length)
    if view.memory_fraction is not None:
        yield option(flags, "memoryFraction", "--mem-fraction-static", view.memory_fraction)
    if view.max_running_requests is not None:
        yield option(flags, "maxRunningRequests", "--max-running-requests", view.max_running_requests)


def _speculative(flags: Flags, wanted: Speculative) -> Iterator[Option]:
    yield option(flags, "speculative.algorithm", "--speculative-algorithm", wanted.algorithm)
    named = (
        ("draftModel", ("--speculative-draft-model-path", "--speculative-draft-model"), wanted.draft_model),
        ("numSteps", ("--speculative-num-steps",), wanted.num_steps),
        ("eagleTopk", ("--speculative-eagle-topk",), wanted.eagle_topk),
        ("numDraftTokens", ("--speculative-num-draft-tokens",), wanted.num_draft_tokens),
        ("blockSize", (block_flag(wanted),), wanted.block_size),
        ("draftWindow", ("--speculative-draft-window-size",), wanted.draft_window),
    )
    for field, spellings, value in named:
        doubled = field == "blockSize" and block_flag(wanted) == DRAFT_TOKENS and wanted.num_draft_tokens is not None
        if value is not None and not doubled:
            yield option(flags, f"speculative.{field}", spellings, value)


DRAFT_TOKENS = "--speculative-num-draft-tokens"
_BLOCK_FLAGS = {"DFLASH": "--speculative-dflash-block-size", "DSPARK": "--speculative-dspark-block-size"}


def block_flag(wanted: Speculative) -> str:
    """The flag of `blockSize`: the algorithm's own, else the number of draft tokens, which is what a block is.

    Algorithms outside the read versions (DDTREE and other plugins) have no block flag there.
    """
    return _BLOCK_FLAGS.get(wanted.algorithm.upper(), DRAFT_TOKENS)
