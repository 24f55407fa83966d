"""The hosts of one test session: made on demand, cleaned between tests, taken down at the end whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import slots
from harness.build import build
from harness.clean import Baseline, clean, take_baseline
from harness.host import Shape, TestHost


class Pool:
    """Hands out clean hosts. Not for several threads, except `make_host` calls through `make_hosts`."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, Shape], tuple[TestHost, Baseline]] = {}
        self._in_use: set[tuple[str, Shape]] = set()
        self._guard: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Pool:
        slots.reap()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._before[number] = signal.signal(number, _interrupt)
        argv = [sys.executable, "-m", "harness.guard"]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self._guard = subprocess.Popen(argv, stdin=subprocess.PIPE, env=env, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_host(
        self, name: str, gpus: int = 2, idle: int = 0, hybrid: bool = False, containers: tuple[int, ...] = ()
    ) -> TestHost:
        """A clean, booted host of that name and shape: the kept one, or a new one. Give it back with `release`."""
        shape = Shape(gpus, idle, hybrid, containers)
        key = (name, shape)
        if key in self._in_use:
            raise RuntimeError(f"test host {name} is in use")
        if key not in self._hosts:
            host = build(name, shape)
            try:
                host.wait_ready()
                self._hosts[key] = (host, take_baseline(host))
            except BaseException:
                host.slot.free()
                raise
        self._in_use.add(key)
        return self._hosts[key][0]

    def release(self, host: TestHost) -> list[str]:
        """Takes a host back and cleans it. One that does not come clean is taken down; says what was in the way."""
        key = (host.name, host.shape)
        if key not in self._hosts or self._hosts[key][0] is not host:
            return []
        self._in_use.discard(key)
        if host.shape.containers:  # what is in them is not cleaned
            self.discard(host)
            return []
        left = clean(host, self._hosts[key][1])
        if left:
            self.discard(host)
        return left

    def discard(self, host: TestHost) -> None:
        """Takes a host down for good."""
        self._hosts.pop((host.name, host.shape), None)
        self._in_use.discard((host.name, host.shape))
        host.undo()
        host.container.power_off(hard=True)
        host.slot.free()

    def close(self) -> None:
        """Takes everything down. May be called twice."""
        failures: list[Exception] = []
        for host, _ in list(self._hosts.values()):
            try:
                self.discard(host)
            except (OSError, RuntimeError) as error:
                failures.append(error)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(30)
            self._guard = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if failures:
            raise ExceptionGroup("test hosts were not taken down", failures)


def _interrupt(number: int, _frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")
