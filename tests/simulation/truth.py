"""What is so on a simulated host, whatever it prints: for checkers, and for telling when a run has converged."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from daemon.sim.disk import FENCE, HOLD, UNITS
from daemon.sim.host import SimHost
from daemon.sim.processes import SimProcess
from tests.simulation.specs import PYTHON, Wish


@dataclass(frozen=True, slots=True)
class UnitTruth:
    """One unit as it is now. `stale`: systemd has not loaded what lies there.

    `argv`, `cards` and `main` are of the live main process; (), "" and 0 when there is none.
    """

    text: str | None = field(repr=False)
    stale: bool
    enabled: bool
    masked: bool
    active: str
    invocation: str
    dropins: tuple[str, ...]
    argv: tuple[str, ...]
    cards: str
    main: int


def expected_flags(wish: Wish) -> dict[str, str]:
    """The flags that carry everything a seed varies: engine, model, port, cards, context."""
    if wish.engine == "vllm":
        names = ("serve", "--served-model-name", "--port", "--tensor-parallel-size", "--max-model-len")
    else:
        names = ("--model-path", "--served-model-name", "--port", "--tp-size", "--context-length")
    values = (f"/models/{wish.name}", wish.name, str(wish.port), str(len(wish.gpus)), str(wish.context))
    return dict(zip(names, values, strict=True))


def runs_as(wish: Wish, unit: UnitTruth) -> bool:
    """Whether the live process is what is wished, by its own arguments and cards."""
    given = dict(zip(unit.argv, unit.argv[1:], strict=False))
    wanted = expected_flags(wish)
    if wanted.get("--tp-size") == "1" or wanted.get("--tensor-parallel-size") == "1":
        wanted = {name: value for name, value in wanted.items() if name not in ("--tp-size", "--tensor-parallel-size")}
    same = all(given.get(name) == value for name, value in wanted.items())
    return same and unit.argv[:1] == (PYTHON,) and unit.cards == ",".join(map(str, wish.gpus))


def written_argv(text: str | None) -> tuple[str, ...]:
    """The command of a unit's text as systemd would run it: the one ExecStart, its prefix and doubled `%` undone."""
    lines = [line.partition("=")[2] for line in (text or "").splitlines() if line.startswith("ExecStart=")]
    return tuple(word.replace("%%", "%") for word in shlex.split(lines[-1].lstrip(":"))) if lines else ()


def unit_truth(host: SimHost, name: str) -> UnitTruth:
    """The unit now; of one that nobody ever wrote, all is empty."""
    host.advance()
    unit, state = host.unit(name), host.units.file_state(host.unit(name))
    main = unit.main
    return UnitTruth(
        text=host.file_text(name),
        stale=host.units.needs_reload(unit),
        enabled=state == "enabled",
        masked=state == "masked",
        active=unit.active,
        invocation=unit.invocation,
        dropins=unit.definition.dropins,
        argv=() if main is None else main.argv,
        cards="" if main is None else main.environment("CUDA_VISIBLE_DEVICES") or "",
        main=0 if main is None else main.pid,
    )


def units_of(host: SimHost) -> list[str]:
    """Unit files of Stoker's names that lie there."""
    names = (path.rpartition("/")[2] for path in host.machine.disk.below(UNITS, ".service"))
    return [name for name in names if name.startswith("stoker-")]


def leftovers(host: SimHost) -> list[SimProcess]:
    """What is left over from instances of ours."""
    return [process for process in host.processes.values() if process.whose == "leftover"]


def fence_of(host: SimHost) -> str:
    """The fence that lies there, "" when there is none."""
    return (host.machine.disk.text(FENCE) or "").strip()


def hold_of(host: SimHost) -> bool:
    """Whether a person's hold lies there."""
    return host.machine.disk.exists(HOLD)
