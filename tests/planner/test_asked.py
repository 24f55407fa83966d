"""What a person's word to clear a process stands in for, and what it never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.actions import Signal
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, ProcessId, Unknown
from daemon.domain.status import Reason
from daemon.planner.clearing import Verdict
from daemon.planner.conditions import host_conditions
from daemon.planner.plan import Plan, decide
from daemon.planner.world import StrayFact, World
from tests.planner.box import UUIDS, Box, Proc
from tests.planner.driving import HOST, Driver, listening, spec

MARKS = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
WORKER = ("sglang::scheduler_TP0",)
ALONE = "/stray"

pytestmark = pytest.mark.strays


def host(**more: object) -> HostSpec:
    return HostSpec.model_validate({**HOST.model_dump(), **more})


def asked(driver: Driver, proc: Proc, *, seen_s: float = 5.0, serves: bool = False) -> tuple[World, ProcessId]:
    """A world in which `ada` asked for that process, seen first `seen_s` ago."""
    world = driver.world()
    identity = next(p for p in world.strays if p.pid == proc.pid)
    fact = StrayFact(driver.now_s - seen_s, serves=serves, asked_at_s=driver.now_s, ports=listening(world))
    return replace(world, strays={**world.strays, identity: fact}, asked={identity: "ada"}), identity


def signalled(plan: Plan) -> list[tuple[str, tuple[ProcessId, ...]]]:
    return [(a.signal, a.targets) for a in plan.actions if isinstance(a, Signal)]


def stage(**more: object) -> Driver:
    return Driver(Box(), {"m": spec()}, host=host(**more))


@pytest.mark.parametrize("lifted", ["limit", "kill", "need", "likely"])
def test_a_persons_word_lifts_policy_and_need(lifted: str) -> None:
    driver = stage(**({"strays": {"limit": "report"}} if lifted == "limit" else {}))
    if lifted == "kill":
        driver.specs["m"] = spec(strays={"kill": "report"})
    marks = () if lifted == "likely" else MARKS
    card = UUIDS[3] if lifted == "need" else UUIDS[0]
    proc = driver.box.spawn(WORKER, ALONE, gpus={card: 9000}, marks=marks)
    if lifted == "likely":
        for _ in range(3):  # so that its unit is there, whose user it runs as
            driver.turn()
    world, identity = asked(driver, proc)
    assert signalled(decide(replace(world, asked={}))) == []
    plan = decide(world)
    assert signalled(plan) == [("TERM", (identity,))]
    assert "asked by ada" in next(a.why for a in plan.actions if isinstance(a, Signal))


def test_a_persons_word_does_not_replace_the_second_look() -> None:
    driver = stage(strays={"limit": "report"})
    world, _ = asked(driver, driver.box.spawn(WORKER, ALONE, gpus={UUIDS[0]: 9000}, marks=MARKS), seen_s=0.4)
    assert signalled(decide(world)) == []


@pytest.mark.parametrize("kept", ["protected", "mps", "foreign", "managed", "unknown", "stuck"])
def test_a_persons_word_never_reaches(kept: str) -> None:
    driver = stage(**({"protect": [{"command": WORKER[0]}]} if kept == "protected" else {}))
    box = driver.box
    if kept == "managed":
        for _ in range(8):
            driver.turn()
        proc = next(p for p in box.procs.values() if p.cgroup.endswith("stoker-m.server.service"))
    elif kept == "foreign":
        proc = box.spawn(("python3", "train.py"), "/system.slice/train.service", gpus={UUIDS[0]: 9000})
    else:
        proc = box.spawn(WORKER, ALONE, gpus={UUIDS[0]: 9000}, marks=None if kept == "unknown" else MARKS)
    if kept == "mps":
        box.spawn(("nvidia-cuda-mps-server",), ALONE, gpus={UUIDS[5]: 30})
    world, identity = asked(driver, proc)
    if kept == "stuck":
        stuck = replace(world.strays[identity], term_at_s=driver.now_s - 60, kill_at_s=driver.now_s - 30)
        world = replace(world, strays={**world.strays, identity: stuck})
    plan = decide(world)
    assert not isinstance(plan.holders, Unknown)
    holder = next(h for h in plan.holders.all if h.process.id == identity)
    assert holder.ownership.owner == {"foreign": "foreign", "managed": "managed", "unknown": "unknown"}.get(
        kept, "orphan-proven"
    )
    assert signalled(plan) == []
    assert all(v.reason is not Reason.OK for v in plan.clearing.verdicts)


def test_no_message_about_a_process_shows_its_secrets() -> None:
    driver = stage()
    secret = "s3cr3tValue99"
    argv = ("python3", "serve.py", "--api-key", secret)
    for cgroup, marks in ((ALONE, MARKS), ("/system.slice/theirs.service", ())):
        driver.box.spawn(argv, cgroup, gpus={UUIDS[0]: 9000}, marks=marks)
    plan = Plan()
    for _ in range(3):
        plan = driver.turn()
        said = (host_conditions(driver.world(), plan, 1), plan.actions, plan.blocked, plan.clearing.verdicts)
        assert "serve.py --api-key [redacted]" in plan.blocked["stoker-m.server.service"].detail
        assert secret not in "".join(holder_free(part) for part in said)
    assert driver.box.signalled


def test_a_survivors_command_line_shows_no_secret_either() -> None:
    driver = stage()
    argv = ("sglang::x", "--api-key", "s3cr3tValue99")
    proc = driver.box.spawn(argv, ALONE, gpus={UUIDS[0]: 9000}, marks=MARKS, state="D")
    world = driver.world()
    look = world.observation
    assert isinstance(look, Observation)
    assert isinstance(look.processes, tuple)
    fact = StrayFact(driver.now_s - 60, term_at_s=driver.now_s - 40, kill_at_s=driver.now_s - 20)
    seen = tuple(replace(p, nvidia_minors=frozenset({0})) for p in look.processes)
    unlisted = replace(look, apps=(), processes=seen)
    plan = decide(replace(world, observation=unlisted, strays={seen[0].id: fact}))
    detail = plan.blocked["stoker-m.server.service"].detail
    assert f"pid {proc.pid} (sglang::x --api-key [redacted]) in state D" in detail


def holder_free(said: object) -> str:
    """What of it is for people: a verdict's holder is the process itself."""
    if isinstance(said, tuple) and said and isinstance(said[0], Verdict):
        return "".join(verdict.detail + verdict.holder.describe() for verdict in said)
    return repr(said)


def test_a_long_list_of_holders_is_cut() -> None:
    driver = stage()
    for _ in range(9):
        driver.box.spawn(("python3", "x.py"), "/system.slice/theirs.service", gpus={UUIDS[0]: 9000})
    for _ in range(4):
        plan = driver.turn()
    clean = next(c for c in host_conditions(driver.world(), plan, 1) if c.type == "Clean")
    for message in (plan.blocked["stoker-m.server.service"].detail, clean.message):
        assert message.count("pid ") == 3
        assert "; and 6 more, see `stoker strays`" in message
