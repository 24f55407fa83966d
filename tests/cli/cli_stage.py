"""What the tests of the command line share: a daemon's API on a real socket, over a real store."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from api.app import create_app
from api.seams import Context
from api.token import token_at
from daemon.memory import HostMemory
from daemon.settings import monotonic, wall_clock
from daemon.store import Store
from daemon.strays import Strays

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeHands:
    """Stands in for the controller."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    recording: dict[str, Any] = field(default_factory=dict)
    strays: Strays = field(init=False)
    memories: dict[str, HostMemory] = field(default_factory=dict)
    clock: Callable[[], float] = monotonic

    def look_into(self, store: Store) -> None:
        """Let it have its strays: the real ones, over memories that a test fills."""
        self.strays = Strays(store, self.memories.get, self.poke, self.now_s, wall_clock)

    def now_s(self) -> float:
        return self.clock()

    def poke(self, host_name: str) -> None:
        return None

    def ready(self) -> bool:
        return True

    async def takeover(self, host_name: str, *, actor: str) -> dict[str, Any]:
        return {"host": host_name, "before": {"store": "s-1", "epoch": 3, "run": "r-1"}, "now": {}}

    async def doctor(self, host_name: str) -> Sequence[dict[str, Any]]:
        return self.checks

    async def record(self, host_name: str) -> dict[str, Any]:
        return {**self.recording, "host": host_name}


@dataclass
class Daemon:
    """A served API; `on_loop` runs a coroutine where the store lives."""

    url: str
    data: Path
    store: Store
    hands: FakeHands
    loop: asyncio.AbstractEventLoop

    def on_loop(self, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(self.store), self.loop).result(30)

    def stoker(self, *args: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a person would, in a pipe."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.data),
            "STOKER_DATA": str(self.data),
            "STOKER_URL": self.url,
        }
        return stoker(*args, stdin=stdin, env=env | environ)


def stoker(*args: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-P", "-c", "from api.cli import main; main()", *args]
    return subprocess.run(command, input=stdin, env=env, capture_output=True, text=True, timeout=60, check=False)


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


@contextmanager
def served(data: Path) -> Iterator[Daemon]:
    """The API on a free port of loopback, on a loop in a thread of its own."""
    hands = FakeHands()
    token = token_at(data)
    listener = socket.create_server(("127.0.0.1", 0))
    ready: threading.Event = threading.Event()
    made: dict[str, Any] = {}

    async def run() -> None:
        async with Store.open(data / "stoker.db") as store:
            hands.look_into(store)
            context = Context(store=store, hands=hands, metrics=lambda: b"", now=lambda: NOW, version="0.1.0")
            config = uvicorn.Config(create_app(context, token), log_config=None, lifespan="off", ws="none")
            made.update(store=store, server=_Server(config), loop=asyncio.get_running_loop())
            ready.set()
            await made["server"].serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield Daemon(f"http://127.0.0.1:{listener.getsockname()[1]}", data, made["store"], hands, made["loop"])
    finally:
        made["server"].should_exit = True
        thread.join(30)
