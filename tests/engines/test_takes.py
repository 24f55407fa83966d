"""Ports that an engine derives, by version, and the share of a card that it needs free."""

from __future__ import annotations

import pytest

from daemon.engines.takes import derived_ports, memory_share

pytestmark = pytest.mark.strays
ATTENTION = ("--dp-size", "2", "--enable-dp-attention")


@pytest.mark.parametrize(
    ("engine", "version", "argv", "ports"),
    [
        ("sglang", "0.5.6", (), ()),
        ("sglang", "0.5.6", ATTENTION, tuple(range(30_233, 30_239))),
        ("sglang", "0.5.23", ATTENTION, tuple(range(30_233, 30_239))),
        ("sglang", "0.5.23", ("--attn-dp-size=4",), tuple(range(30_233, 30_239))),
        ("sglang", None, ("--data-parallel-size", "2", "--enable-dp-attention"), tuple(range(30_233, 30_239))),
        ("sglang", "0.5.6", ("--dp-size", "1", "--enable-dp-attention"), ()),
        ("sglang", "0.5.23", (*ATTENTION, "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "h:5000"), ()),
        ("sglang", "0.5.23", (*ATTENTION, "--nnodes", "2", "--dist-init-addr", "[::1]:5000"), tuple(range(5000, 5006))),
        ("sglang", "0.5.23", ("--dist-init-addr", "10.0.0.1:5000"), (5000,)),
        ("sglang", "0.5.23", ("--nccl-port", "28000"), (28_000,)),
        ("sglang", "0.5.23", ("--nccl-port", "28000", "--dp-size", "2"), ()),
        ("sglang", "0.5.23", ("--grpc-port", "40000"), (40_000,)),
        ("sglang", "0.5.6", ("--grpc-port", "40000"), ()),
        ("sglang", "0.5.23", ("--nccl-port", "many"), ()),
        ("sglang", "0.5.23", ("--nccl-port",), ()),
        ("vllm", "0.33.0", ("--master-port", "29501"), ()),
        ("vllm", "0.33.0", ("--nnodes", "2", "--master-port", "29777"), (29_777,)),
        ("vllm", "0.33.0", ("-n", "2", "-r", "1", "--master-port", "29777"), ()),
        ("custom", None, ("--nccl-port", "28000"), ()),
    ],
)
def test_ports_besides_the_declared_one(
    engine: str, version: str | None, argv: tuple[str, ...], ports: tuple[int, ...]
) -> None:
    """`PortArgs.init_new` of SGLang 0.5.6 and 0.5.23; vLLM's parsers."""
    assert derived_ports(engine, version, ("/p", "-m", "x", "--port", "30000", *argv), 30_000) == ports


@pytest.mark.parametrize(
    ("engine", "argv", "share"),
    [
        ("sglang", (), 0.9),
        ("sglang", ("--mem-fraction-static", "0.85"), 0.85),
        ("sglang", ("--mem-fraction-static", "0.85", "--mem-fraction-static=0.7"), 0.7),
        ("sglang", ("--mem-fraction-static", "much"), 0.9),
        ("sglang", ("--mem-fraction-static", "7"), 0.9),
        ("vllm", (), 0.92),
        ("vllm", ("--gpu-memory-utilization=0.5",), 0.5),
        ("custom", ("--gpu-memory-utilization", "0.5"), 0.9),
    ],
)
def test_the_share_of_a_card_that_has_to_be_free(engine: str, argv: tuple[str, ...], share: float) -> None:
    assert memory_share(engine, None, argv) == share
