"""Ownership over random hosts: less known, more company or another order never makes an orphan of anybody.

A host is a unit that is up or down, and processes of every kind that holders are made of; each is judged by the planner
alone. What is taken away is one input: a section, a field of a process, or a whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.domain.observation import Listener, Observation, Process, ProcessId, Session, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.holders import holders_of, ledger_of
from daemon.planner.world import StrayFact, World
from tests.planner.box import UUIDS, Box, BoxUnit
from tests.planner.driving import HOST, Driver, listening, spec

UNIT = "stoker-m.server.service"
HOME = f"/system.slice/{UNIT}"
UNKNOWN = Unknown(Reason.TRUNCATED)
MARKS = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))

pytestmark = pytest.mark.strays

argvs = st.sampled_from(
    [
        ("/opt/venv/bin/python", "-m", "sglang.launch_server", "--port", "9000"),
        ("sglang::scheduler_TP0",),
        ("VLLM::Worker_TP1",),
        ("python3", "train.py"),
        ("-bash",),
        ("/bin/sh", "-c", "x"),
        ("/usr/bin/supervisor",),
        ("/lib/systemd/systemd", "--user"),
        (),
    ]
)
cgroups = st.sampled_from(
    [HOME, f"{HOME}/x", "/", "/gone", "/system.slice/theirs.service", f"/system.slice/theirs.service/{UNIT}",
     "/system.slice/docker-4be1.scope", "/user.slice/user-0.slice/session-4.scope", "/lxc/7/ns/init.scope"]
)  # fmt: skip
marks = st.sampled_from([(), MARKS, (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "another")), None])


@st.composite
def processes(draw: st.DrawFn) -> tuple[Process, ...]:
    """Up to six, each under PID 1, an earlier one, or somebody outside."""
    found: list[Process] = []
    for number in range(draw(st.integers(1, 6))):
        pid, above = 500 + number, [p.id.pid for p in found]
        argv = draw(argvs)
        found.append(
            Process(
                id=ProcessId(pid, draw(st.sampled_from([9_000, 9_999, 10_050]))),
                ppid=draw(st.sampled_from([1, 1, 0, *above])),
                pgrp=draw(st.sampled_from([pid, *above])),
                session=draw(st.sampled_from([pid, *above])),
                state=draw(st.sampled_from("SSSRDTZ")),
                uid=draw(st.sampled_from([0, 0, 0, 1000])),
                comm=(argv or ("x",))[0].rpartition("/")[2][:15],
                cgroup=draw(cgroups),
                argv=argv,
                marks=draw(marks),
                nvidia_open=True,
            )
        )
    return tuple(found)


@st.composite
def hosts(draw: st.DrawFn) -> World:
    """A look at them; everything holds a card, some listen."""
    here = draw(processes())
    active, sub = draw(
        st.sampled_from(
            [("active", "running"), ("activating", "start-pre"), ("activating", "auto-restart"), ("inactive", "dead"),
             ("failed", "failed"), ("failed", "failed-before-auto-restart"), ("deactivating", "stop-sigterm")]
        )
    )  # fmt: skip
    box = Box(ticks=10_100)
    box.units[UNIT] = BoxUnit(file="[Service]\n", active=active, sub=sub, exit_ticks=10_000, invocation="i" * 32)
    driver = Driver(box, {"m": spec(gpus=(0, 1, 2, 3))}, host=HOST)
    world = driver.world()
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.units, tuple)
    main = draw(st.sampled_from([0, *(p.id.pid for p in here)])) if active == "active" else 0
    units = tuple(replace(u, main_pid=main, control_group=HOME if active == "active" else "") for u in look.units)
    states = st.sampled_from(["active", "inactive", "activating"])
    look = replace(
        look,
        processes=here,
        units=units,
        other_units=(("theirs.service", draw(states)), ("docker-4be1.scope", draw(states)), ("init.scope", "active")),
        sessions=(Session("4", draw(st.sampled_from([0, *(p.id.pid for p in here)]))),),
        listeners=tuple(
            Listener("0.0.0.0", 9000 + p.id.pid, (p.id.pid,)) for p in here if p.state != "Z" and draw(st.booleans())
        ),
    )
    ports = listening(replace(world, observation=look))
    facts = {
        p.id: StrayFact(
            0.0, serves=draw(st.sampled_from([None, None, False, True])), asked_at_s=world.now_s, ports=ports
        )
        for p in here
    }
    return replace(world, observation=look, strays=facts)


def owners(world: World, look: Observation) -> dict[ProcessId, str]:
    """Whose every process is: all of them hold a card here."""
    apps = tuple(replace(APP, pid=p.id.pid) for p in look.processes)  # type: ignore[union-attr]
    look = replace(look, apps=apps)
    world = replace(world, observation=look)
    holders = holders_of(world, look, ledger_of(world, look))
    return {} if isinstance(holders, Unknown) else {h.process.id: h.ownership.owner for h in holders.all}


def _app() -> object:
    box = Box()
    box.spawn(("x",), "/x", gpus={UUIDS[0]: 9000})
    apps = box.look(0.0, ()).apps
    assert isinstance(apps, tuple)
    return apps[0]


APP = _app()


def orphans(found: dict[ProcessId, str]) -> set[ProcessId]:
    return {process for process, owner in found.items() if owner.startswith("orphan")}


def section(name: str) -> Callable[[Observation, int], Observation]:
    return lambda look, _: replace(look, **{name: UNKNOWN})


def field(**values: object) -> Callable[[Observation, int], Observation]:
    def change(look: Observation, at: int) -> Observation:
        assert isinstance(look.processes, tuple)
        at %= len(look.processes)
        changed = replace(look.processes[at], **values)  # type: ignore[arg-type]
        return replace(look, processes=(*look.processes[:at], changed, *look.processes[at + 1 :]))

    return change


def row(look: Observation, at: int) -> Observation:
    """One that listens nowhere: of a listener without its row nothing is lost, it has ended and serves no more.

    The helper names all its candidates and those that ended meanwhile; with another row missing there are no processes.
    """
    assert isinstance(look.processes, tuple)
    assert isinstance(look.listeners, tuple)
    listening = {pid for listener in look.listeners for pid in listener.pids}
    quiet = [process for process in look.processes if process.id.pid not in listening]
    lost = quiet[at % len(quiet)] if quiet else None
    return replace(look, processes=tuple(process for process in look.processes if process is not lost))


def of_unit(**values: object) -> Callable[[Observation, int], Observation]:
    def change(look: Observation, _: int) -> Observation:
        assert isinstance(look.units, tuple)
        return replace(look, units=tuple(replace(u, **values) for u in look.units if isinstance(u, Unit)))  # type: ignore[arg-type]

    return change


def states(look: Observation, at: int) -> Observation:
    assert isinstance(look.other_units, tuple)
    at %= len(look.other_units)
    return replace(look, other_units=look.other_units[:at] + look.other_units[at + 1 :])


LOST = {
    "units": section("units"), "other units": section("other_units"), "sessions": section("sessions"),
    "listeners": section("listeners"), "its cgroup": field(cgroup=""), "its environment": field(marks=None),
    "a process": row, "what is loaded": of_unit(loaded=UNKNOWN), "when it started": of_unit(inactive_exit_us=0),
    "when it changed": of_unit(state_change_us=0), "the state of one other unit": states,
}  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(hosts(), st.sampled_from(sorted(LOST)), st.integers(0, 5))
def test_one_input_less_makes_an_orphan_of_nobody(world: World, lost: str, at: int) -> None:
    look = world.observation
    assert isinstance(look, Observation)
    assert orphans(owners(world, LOST[lost](look, at))) <= orphans(owners(world, look))


@settings(max_examples=400, deadline=None)
@given(hosts(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_verdict(world: World, dice: object) -> None:
    look = world.observation
    assert isinstance(look, Observation)
    mixed = {}
    for name in ("processes", "other_units", "sessions", "listeners", "units"):
        rows = list(getattr(look, name))
        dice.shuffle(rows)  # type: ignore[attr-defined]
        mixed[name] = tuple(rows)
    assert owners(world, replace(look, **mixed)) == owners(world, look)


@settings(max_examples=400, deadline=None)
@given(hosts(), processes())
def test_an_unrelated_process_changes_nobodys_verdict(world: World, others: tuple[Process, ...]) -> None:
    """Another tree, in its own groups and sessions, whoever it is."""
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.processes, tuple)

    def far(number: int) -> int:
        return number + 1000 if number > 1 else number

    strangers = tuple(
        replace(
            p, id=ProcessId(far(p.id.pid), p.id.start_ticks), ppid=far(p.ppid), pgrp=far(p.pgrp), session=far(p.session)
        )
        for p in others
    )
    before = owners(world, look)
    after = owners(world, replace(look, processes=(*look.processes, *strangers)))
    assert {process: after[process] for process in before} == before


@settings(max_examples=300, deadline=None)
@given(hosts())
def test_who_is_held_by_somebody_is_never_an_orphan(world: World) -> None:
    """Told again from the table's words, without the planner's code."""
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.processes, tuple)
    assert isinstance(look.sessions, tuple)
    live = {name for name, state in look.other_units if state != "inactive"}  # type: ignore[union-attr]
    alive = {p.id.pid for p in look.processes if p.state != "Z"}
    attended = {s.id for s in look.sessions if s.leader_pid in alive}
    found = owners(world, look)
    for process in look.processes:
        parts = process.cgroup.split("/")
        held = bool(live.intersection(parts)) or "lxc" in parts or any(f"session-{s}.scope" in parts for s in attended)
        fact = world.strays[process.id]
        elsewhere = not process.cgroup.startswith(HOME)
        if elsewhere and (held or process.uid != 0 or fact.serves):
            assert not found[process.id].startswith("orphan"), process
