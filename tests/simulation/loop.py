"""An asyncio event loop on virtual time: it never waits, it jumps to the next timer. One thread, no sockets.

Work that is handed to threads (the store's bodies, `asyncio.to_thread`) runs at once, in place: virtual time never
passes while it does. So a run is one sequence of steps that its seed decides.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
BEGINS_AT_S = 1000.0
A_WHILE_S = 0.1
ROUNDS_AT_MOST = 100_000


class Stuck(Exception):
    """Nothing is ready and no timer is set: in reality this would wait without end."""


class Spins(Exception):
    """Round after round, and time hardly passes: in reality a core would burn."""


class _Jumps(selectors.SelectSelector):
    """Instead of waiting for `timeout`, moves the clock by it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGINS_AT_S
        self._since_s, self._rounds = BEGINS_AT_S, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self.now_s += max(0.0, timeout)
        self._rounds += 1
        if self.now_s - self._since_s >= A_WHILE_S:
            self._since_s, self._rounds = self.now_s, 0
        elif self._rounds > ROUNDS_AT_MOST:
            raise Spins(f"{self._rounds} rounds within {self.now_s - self._since_s:.6f} s, at {self.now_s:.3f} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        made: asyncio.Future[T] = self.create_future()
        try:
            made.set_result(func(*args))
        except Exception as error:
            made.set_exception(error)
        return made


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on virtual time, on a loop of its own.

    An error in a callback or a forgotten task, which a loop only logs, is raised at the end.
    """
    unheard: list[BaseException] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, told: unheard.append(_error_of(told)))
        done = runner.run(main)
    for error in unheard:
        raise error
    return done


def _error_of(told: dict[str, Any]) -> BaseException:
    return told.get("exception") or RuntimeError(str(told.get("message")))
