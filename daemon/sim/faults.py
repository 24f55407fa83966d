"""What goes wrong in the demo, and when: each fault with its host, what is done there, and what ends it.

Called by `stoker demo`, which begins one after the other. Each begin and end tells what it really did, pids included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from daemon.sim.host import SimHost

TRAINER_MIB, TRAINED_CARD = 96_000, 4
TRAINER_S = 15.0
EDIT = ("--mem-fraction-static 0.85", "--mem-fraction-static 0.6")
BROKEN_BUILD_S = 40.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong on `host`, for the instance of `spec` there. `begin` and `end` tell what they did.

    `tells` are the daemon's reasons that tell this fault and no mere consequence of it, such as a unit that stops.
    A fault with an `end` goes on until then, `hold_s` after its beginning: only then can it be healed.
    """

    name: str
    title: str
    host: str
    spec: str
    tells: tuple[str, ...]
    begin: Callable[[], str]
    end: Callable[[], str] | None = None
    hold_s: float = 0.0
    limit_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault that is known by name, where in the practice fleet it happens, and how it is done."""

    title: str
    host: str
    spec: str
    tells: tuple[str, ...]
    begin: Callable[[SimHost, str], str]
    end: Callable[[SimHost, str], str] | None = None
    hold_s: float = 0.0


def _crash(host: SimHost, unit: str) -> str:
    pid = _main(host, unit)
    host.crash(unit)
    return f"{unit}, pid {pid}: a rank dies of an illegal memory access, and the server with it"


def _zombie(host: SimHost, unit: str) -> str:
    pid = _main(host, unit)
    left = host.kill_launcher(unit)
    return f"launcher {pid} of {unit} is killed; its ranks {', '.join(map(str, left))} live on and hold their cards"


def _edit(host: SimHost, unit: str) -> str:
    text = (host.file_text(unit) or "").replace(*EDIT)
    host.edit_file(unit, text, reload=True)
    host.hand_restart(unit)
    return f"somebody changes {EDIT[0]} to {EDIT[1].split()[-1]} in the file of {unit}, reloads and restarts it"


def _break_build(host: SimHost, unit: str) -> str:
    host.first_request_crash(unit, True)
    host.hand_restart(unit)
    return f"somebody installs a broken build and restarts {unit}: it loads, is healthy, and dies on its first request"


def _mend_build(host: SimHost, unit: str) -> str:
    """What runs has loaded the broken build and keeps it: it dies of its first request yet."""
    host.first_request_crash(unit, False)
    engine = host.engine(unit)
    still = "the next start takes it" if engine is None else f"pid {engine.main.pid} has loaded the broken one"
    return f"somebody puts the working build back; {still}"


def _train(host: SimHost, unit: str) -> str:
    host.hand_stop(unit)
    trainer = host.foreign_trainer(TRAINED_CARD, TRAINER_MIB)
    return f"somebody stops {unit} by hand and trains on card {TRAINED_CARD}: pid {trainer.pid}"


def _end_training(host: SimHost, unit: str) -> str:
    trainers = [one for one in host.processes.values() if one.whose == "foreign" and one.memory]
    for one in trainers:
        host.leave(one)
    return f"the training ends by itself: pid {', '.join(str(one.pid) for one in trainers)}"


KINDS: Mapping[str, Kind] = {
    "crash": Kind("an engine dies of a CUDA error", "gpu-1", "deepseek", ("EngineCrashed",), _crash),
    "zombie": Kind(
        "a launcher dies, its ranks live on and hold the cards", "gpu-3", "coder", ("OrphanWorkers",), _zombie
    ),
    "edit": Kind(
        "a unit file is edited by hand, and the unit restarted",
        "gpu-3",
        "kimi",
        ("UnitDrift", "LaunchChanged"),
        _edit,
    ),
    "first-request": Kind(
        "a broken build: healthy until its first request",
        "gpu-4",
        "llama",
        ("EngineCrashed", "FirstRequestCrash"),
        _break_build,
        _mend_build,
        BROKEN_BUILD_S,
    ),
    "trainer": Kind(
        "somebody stops a server and trains on its card",
        "gpu-4",
        "glm",
        ("ForeignHolder",),
        _train,
        _end_training,
        TRAINER_S,
    ),
}


def schedule(names: Iterable[str], hosts: Mapping[str, SimHost]) -> tuple[Fault, ...]:
    """The faults of those names, in order; those whose host is not there are left out."""
    return tuple(_fault(name, KINDS[name], hosts) for name in names if KINDS[name].host in hosts)


def _fault(name: str, kind: Kind, hosts: Mapping[str, SimHost]) -> Fault:
    host, unit = hosts[kind.host], f"stoker-{kind.spec}.server.service"
    end = None if kind.end is None else partial(kind.end, host, unit)
    begin = partial(kind.begin, host, unit)
    return Fault(name, kind.title, kind.host, kind.spec, kind.tells, begin, end, kind.hold_s)


def _main(host: SimHost, unit: str) -> int:
    main = host.unit(unit).main
    return main.pid if main is not None else 0
