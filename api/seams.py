"""What the routes need of the daemon's hands. `daemon.controller.Controller` fits it; tests pass a small stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from fastapi import Request

from daemon.store import Store
from daemon.strays import Strays


class Hands(Protocol):
    """The running controller."""

    def poke(self, host_name: str) -> None:
        """Look at that host now. May be called for a host that does not exist; never waits."""

    @property
    def strays(self) -> Strays:
        """Who holds what on each host, as last seen, and a person's word to clear some of it."""

    def ready(self) -> bool:
        """Whether the first round over the known hosts has begun and the store can be written."""

    async def takeover(self, host_name: str, *, actor: str) -> dict[str, Any]:
        """Take the host's fence whoever holds it. Raises: TransportError, VerbRefused, VerbFailed."""

    async def doctor(self, host_name: str) -> Sequence[dict[str, Any]]:
        """Everything a host needs, each as {name, ok: true | false | None (unknown), found, remedy}."""

    async def record(self, host_name: str) -> dict[str, Any]:
        """One look whole, as a recording. Raises: TransportError."""


@dataclass(slots=True)
class Context:
    """What one application works with; kept in `app.state.context`."""

    store: Store
    hands: Hands
    metrics: Callable[[], bytes]
    now: Callable[[], datetime]
    version: str
    # Admission reads all objects and then writes one: two at once could both be given the same card.
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)


def context_of(request: Request) -> Context:
    """The context of the application that serves this request."""
    context: Context = request.app.state.context
    return context
