"""What the tests of the API share: a client, a stand-in for the controller, manifests to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from daemon.memory import HostMemory
from daemon.store import Store
from daemon.strays import Strays

TOKEN = "test-token-of-enough-length"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeHands:
    """Notes what was asked of the controller."""

    poked: list[str] = field(default_factory=list)
    is_ready: bool = True
    taken_by: str = ""
    strays: Strays = field(init=False)
    memories: dict[str, HostMemory] = field(default_factory=dict)
    now_s: float = 0.0

    def look_into(self, store: Store) -> None:
        """Let it have its strays: the real ones, over memories that a test fills."""
        self.strays = Strays(store, self.memories.get, self.poke, lambda: self.now_s, lambda: NOW)

    def poke(self, host_name: str) -> None:
        self.poked.append(host_name)

    def ready(self) -> bool:
        return self.is_ready

    async def takeover(self, host_name: str, *, actor: str) -> dict[str, Any]:
        self.taken_by = actor
        fence = {"store": "s-2", "epoch": 1, "run": "r-2"}
        return {"host": host_name, "before": {**fence, "store": "s-1"}, "now": fence}

    async def doctor(self, host_name: str) -> Sequence[dict[str, Any]]:
        return [{"name": "sudo", "ok": False, "found": "sudo: a password is required", "remedy": "see sudoers.stoker"}]


@dataclass
class Api:
    """A client with the token, and what stands behind it."""

    http: httpx.AsyncClient
    store: Store
    hands: FakeHands

    async def put(self, document: Any) -> httpx.Response:
        """PUT a document where its kind and name say."""
        plural = {"Host": "hosts", "ServingSpec": "servingspecs"}[document["kind"]]
        return await self.http.put(f"/api/v1/{plural}/{document['metadata']['name']}", json=document)

    async def contents(self) -> object:
        """All that is stored, to see that a refused request changed nothing."""
        return (
            await self.store.list("Host"),
            await self.store.list("ServingSpec"),
            await self.store.events(limit=1000),
            await self.store.tombstones(),
            await self.store.paused(),
        )


def host(name: str = "gpu-a", **spec: Any) -> dict[str, Any]:
    """A Host manifest with 8 GPUs."""
    address = f"192.0.2.{1 + sum(name.encode()) % 250}"
    full = {"ssh": {"address": address}, "gpus": {"count": 8}} | spec
    return {"apiVersion": "stoker/v1", "kind": "Host", "metadata": {"name": name}, "spec": full}


def spec(name: str = "k26", **changes: Any) -> dict[str, Any]:
    """A ServingSpec manifest on gpu-a with GPUs 0 and 1."""
    full: dict[str, Any] = {
        "engine": {"name": "sglang", "python": "/opt/venv/bin/python"},
        "model": {"path": "/models/m"},
        "parallelism": {"tensor": 2},
        "placement": {"host": "gpu-a", "gpus": [0, 1]},
        "port": 30001,
    } | changes
    return {"apiVersion": "stoker/v1", "kind": "ServingSpec", "metadata": {"name": name}, "spec": full}
