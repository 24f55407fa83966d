"""The argv of SGLang's router before prefill and decode servers: `python -m sglang_router.launch_router …`.

Called by `launch`, `check` and `unit`. Flag facts: sglang-router 0.2.4 and 0.3.2; its version is not the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from daemon.domain.spec import Role, ServingSpec
from daemon.engines.arguments import Option, merged, option
from daemon.engines.catalogue import Flags, flags_of
from daemon.engines.sglang import DEFAULT_BOOTSTRAP_PORT

MODULE = "sglang_router.launch_router"
DRAIN_S = 180  # its own --shutdown-grace-period-secs
TITLE = "sglang::router"  # what it makes of its own command line after start


@dataclass(frozen=True, slots=True)
class Peer:
    """One worker behind the router, by the address that the router's host reaches it under."""

    role: Role
    address: str
    port: int
    bootstrap_port: int | None = None


def argv(view: ServingSpec, peers: tuple[Peer, ...]) -> tuple[str, ...]:
    """The whole argv of a router over `peers`."""
    flags = flags_of("sglang-router", None)
    head = (view.engine.python or "", "-m", MODULE)
    return (*head, *merged(flags, options(flags, view, peers), view.args))


def options(flags: Flags, view: ServingSpec, peers: tuple[Peer, ...]) -> Iterator[Option]:
    """Every flag that the spec's fields ask for. Workers are sorted: their order must not look like a change."""
    yield option(flags, "", "--pd-disaggregation")
    for peer in sorted(peers, key=lambda one: (one.address, one.port)):
        if peer.role == "prefill":
            port = DEFAULT_BOOTSTRAP_PORT if peer.bootstrap_port is None else peer.bootstrap_port
            yield option(flags, "", "--prefill", url(peer), port)
    for peer in sorted(peers, key=lambda one: (one.address, one.port)):
        if peer.role == "decode":
            yield option(flags, "", "--decode", url(peer))
    yield option(flags, "listen", "--host", view.listen)
    if view.port is not None:
        yield option(flags, "port", "--port", view.port)


def url(peer: Peer) -> str:
    """A worker's address as the router wants it; IPv6 in brackets."""
    address = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"http://{address}:{peer.port}"


def is_router(argv: tuple[str, ...]) -> bool:
    """Whether an argv starts the router."""
    return argv[1:3] == ("-m", MODULE)
