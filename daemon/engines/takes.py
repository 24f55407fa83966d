"""What an engine surely takes besides what is declared: ports it derives, and its share of each card's memory.

Called by the planner for the look, the barrier and the gate's manifest. A start on a taken derived port fails or waits
in vain (case B19); those chosen at random are not here. Read in SGLang 0.5.6 and 0.5.23 (`PortArgs.init_new`) and in
vLLM's parsers; its `--master-port` is bound for several nodes alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from daemon.engines.catalogue import Flags, flags_of

ATTENTION_DP_DELTA = 233  # SGLang's ZMQ_TCP_PORT_DELTA
ATTENTION_DP_PORTS = 6  # rendezvous, base, detokenizer, rpc, metrics, tokenizer to controller
_HIGHEST = 65535
_SHARE_FLAGS = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}
_SGLANG_SHARE = 0.9  # computed from card and batch where it is not given; no more than this on large cards
_VLLM_SHARE = 0.92  # 0.9 up to 0.12.0


def derived_ports(engine: str, version: str | None, argv: tuple[str, ...], port: int | None) -> tuple[int, ...]:
    """Ascending, without `port` itself; `argv` is what is launched. Of a router or a custom engine nothing is known."""
    match engine:
        case "sglang":
            found = set(_sglang(flags_of("sglang", version), argv, port))
        case "vllm":
            found = set(_vllm(flags_of("vllm", version), argv))
        case _:
            found = set()
    return tuple(sorted(one for one in found - {port} if 0 < one <= _HIGHEST))


def memory_share(engine: str, version: str | None, argv: tuple[str, ...]) -> float:
    """The share of a card's memory that has to be free for a start: as launched, else the engine's own default."""
    default = _VLLM_SHARE if engine == "vllm" else _SGLANG_SHARE
    if engine not in _SHARE_FLAGS:
        return default
    flags = flags_of("vllm" if engine == "vllm" else "sglang", version)
    try:
        share = float(value_of(flags, argv, _SHARE_FLAGS[engine]) or default)
    except ValueError:
        return default
    return share if 0 < share <= 1 else default


def value_of(flags: Flags, argv: tuple[str, ...], name: str) -> str | None:
    """The last value that an argv gives a flag in any spelling: "" for one without a value, None when absent."""
    flag = flags.find(name)
    spellings = (name,) if flag is None else flag.spellings
    found: str | None = None
    for at, word in enumerate(argv):
        spelling, equals, joined = word.partition("=")
        if spelling in spellings:
            following = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("-") else ""
            found = joined if equals else following
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _sglang(flags: Flags, argv: tuple[str, ...], port: int | None) -> Iterator[int]:
    nodes = _number(value_of(flags, argv, "--nnodes")) or 1
    first = (_number(value_of(flags, argv, "--node-rank")) or 0) == 0
    meeting = _number((value_of(flags, argv, "--dist-init-addr") or "").rpartition(":")[2])
    replicas = (_number(value_of(flags, argv, "--dp-size")) or 1) > 1
    attention = replicas and value_of(flags, argv, "--enable-dp-attention") is not None
    attention = attention or (_number(value_of(flags, argv, "--attn-dp-size")) or 1) > 1
    if flags.find("--grpc-port") is not None and (grpc := _number(value_of(flags, argv, "--grpc-port"))) is not None:
        yield grpc
    if not first:
        return
    nccl = _number(value_of(flags, argv, "--nccl-port"))
    if nccl is not None and meeting is None and (attention or not replicas):
        yield nccl
    if attention and nodes == 1 and meeting is None and port is not None:
        meeting = port + ATTENTION_DP_DELTA
    if meeting is not None and meeting + ATTENTION_DP_PORTS < _HIGHEST:  # beyond that versions differ
        yield from range(meeting, meeting + (ATTENTION_DP_PORTS if attention else 1))


def _vllm(flags: Flags, argv: tuple[str, ...]) -> Iterator[int]:
    nodes = _number(value_of(flags, argv, "--nnodes")) or 1
    master = _number(value_of(flags, argv, "--master-port"))
    if nodes > 1 and master is not None and (_number(value_of(flags, argv, "--node-rank")) or 0) == 0:
        yield master
