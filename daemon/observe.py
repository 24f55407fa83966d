"""One look at a host: asks `stoker-host observe` for what the declared instances need and gives the observation.

A look that is not complete is `Unknown` with its reason; it is never an empty host (law 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Observation, Unit, Unknown
from daemon.domain.status import Reason
from daemon.probes.report import parse_observation
from daemon.verbs import Asks, ask

LEFTOVERS_FROM = 3  # the first helper that knows of them: an older one refuses the question


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a look is to include: unit names (adopted ones as drop-ins), ports, names of environment variables
    and beginnings of such names, and what engines left in /dev/shm. `unusable` are UUIDs of cards on which no gate may
    let a unit start; None leaves what the gates know."""

    units: tuple[str, ...] = ()
    dropins: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    env: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    leftovers: bool = False
    unusable: tuple[str, ...] | None = None

    def lines(self, limit_ms: int) -> Iterable[tuple[str, str]]:
        """The request lines."""
        yield from (("unit", name) for name in (*self.units, *self.dropins))
        yield from (("dropin", name) for name in self.dropins)
        yield from (("port", str(port)) for port in self.ports)
        yield from (("env", name) for name in self.env)
        yield from (("env-prefix", prefix) for prefix in self.prefixes)
        if self.unusable is not None:
            yield from (("unusable", uuid) for uuid in self.unusable or ("-",))
        yield "whole-table", "0"
        if self.leftovers:
            yield "leftovers", "1"
        yield "limit-ms", str(limit_ms)


def with_leftovers(wanted: Wanted, before: Observation | Unknown | None, due: Iterable[str]) -> Wanted:
    """The same with what engines left in /dev/shm, where the look before shows one of the units down that are to run.

    Who has a file mapped is asked of every process, which makes such a look about twice as long.
    """
    if not isinstance(before, Observation) or before.helper < LEFTOVERS_FROM:
        return wanted
    found = (before.unit(name) for name in due)
    down = any(isinstance(unit, Unit) and unit.active_state in ("inactive", "failed") for unit in found)
    return replace(wanted, leftovers=down)


class Weighed:
    """A road that notes how long its last answer took, and its size."""

    def __init__(self, road: Asks, clock: Callable[[], float]) -> None:
        self._road, self._clock = road, clock
        self.took_s, self.size = 0.0, 0

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        began = self._clock()
        answer = await self._road.call(verb, stdin, timeout_s)
        self.took_s, self.size = self._clock() - began, len(answer)
        return answer


async def observe(road: Asks, name: str, wanted: Wanted, *, at_s: float, timeout_s: float) -> Observation | Unknown:
    """The look, within `timeout_s`; each tool on the host gets half of that."""
    try:
        answer = await ask(road, "observe", wanted.lines(int(timeout_s * 500)), timeout_s=timeout_s)
    except TransportError as error:
        return Unknown(Reason(error.reason), error.message)
    except (VerbFailed, VerbRefused) as error:
        return Unknown(Reason.LOOK_INCOMPLETE, str(error))
    return parse_observation(answer, name, at_s)
