"""The simulated machine by itself: systemd's rules, engines, people, and that the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
import random

import pytest

from daemon import host as files
from daemon.doctor import Check, examine
from daemon.domain.host import HostSpec
from daemon.domain.observation import GpuApp, Unknown
from daemon.domain.status import Reason
from daemon.install import ensure_helper
from daemon.sim.host import SimHost
from daemon.verbs import request
from tests.sim.driven import PATH, UNIT, Clock, SimRoad, look_at, sim_host, unknowns

pytestmark = pytest.mark.fleet
SPEC = HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}})
NONCE = "ab" * 16
SERVER = "-m sglang.launch_server --model-path /models/m --host 0.0.0.0 --port 30001 --tp-size 2"


def text_of(*more: str, command: str = f"/opt/venv/bin/python {SERVER}") -> str:
    lines = ("[Service]", "Type=exec", "Environment=CUDA_VISIBLE_DEVICES=0,1 STOKER_SPEC=s SPT_NOENV=1",
             f"ExecStart=:{command}", "KillMode=mixed", "TimeoutStopSec=20", "Restart=always", "RestartSec=5",
             "RestartPreventExitStatus=2", *more, "[Install]", "WantedBy=multi-user.target")  # fmt: skip
    return "\n".join(lines) + "\n"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(clock: Clock) -> SimHost:
    return sim_host(clock)


def served(host: SimHost, clock: Clock, text: str = "", *, wait_s: float = 10) -> None:
    """A unit that runs for so long."""
    host.edit_file(UNIT, text or text_of(), reload=True)
    host.hand_start(UNIT)
    clock.now_s += wait_s
    host.advance()


def state(host: SimHost) -> tuple[str, str, str]:
    host.advance()
    unit = host.unit(UNIT)
    return unit.active, unit.sub, unit.result


# ---- systemd ----


def test_a_main_process_that_ignores_term_is_killed_when_its_time_is_over(host: SimHost, clock: Clock) -> None:
    host.switches(UNIT).deaf = True
    served(host, clock)
    host.hand_stop(UNIT)
    clock.now_s += 19.9
    assert state(host) == ("deactivating", "stop-sigterm", "success")
    clock.now_s += 0.2
    assert state(host) == ("failed", "failed", "timeout")
    assert not host.machine.processes.in_group(f"/system.slice/{UNIT}")


def test_a_stopped_process_keeps_its_term_for_later(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    main = host.unit(UNIT).main
    assert main is not None
    host.machine.processes.signal(main, "STOP")
    host.hand_stop(UNIT)
    clock.now_s += 5
    assert state(host)[0] == "deactivating"
    host.thaw()
    clock.now_s += 1
    assert state(host) == ("inactive", "dead", "success")


def test_what_survives_kill_makes_the_unit_fail_and_stays_behind(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    engine = host.engine(UNIT)
    assert engine is not None
    stuck = engine.ranks[0]
    stuck.state = "D"
    host.crash(UNIT)
    assert state(host) == ("deactivating", "final-sigkill", "signal")
    clock.now_s += 20.5
    assert state(host)[:2] == ("activating", "auto-restart")
    assert (stuck.whose, stuck.cgroup) == ("leftover", f"/system.slice/{UNIT}")
    assert stuck.pid in host.processes


@pytest.mark.parametrize(("mode", "left"), [("process", 3), ("control-group", 0), ("mixed", 0)])
def test_the_kill_mode_decides_who_is_left(host: SimHost, clock: Clock, mode: str, left: int) -> None:
    served(host, clock, text_of(f"KillMode={mode}"))
    engine, main = host.engine(UNIT), host.unit(UNIT).main
    assert engine is not None
    assert main is not None
    for process in (*engine.ranks, *engine.helpers):
        process.tethered = False
    host.machine.processes.end(main, 2, 11)
    assert len(host.machine.processes.in_group(f"/system.slice/{UNIT}")) == left


def test_a_start_limit_ends_in_failed_and_a_start_by_the_helper_forgets_it(host: SimHost, clock: Clock) -> None:
    crashing = text_of("StartLimitBurst=3", "RestartSec=1", command="/bin/false")
    served(host, clock, crashing.replace("StartLimitBurst=3\n", "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=3h\n"
                                         "[Service]\n"))  # fmt: skip
    assert state(host) == ("failed", "failed", "start-limit-hit")
    assert host.unit(UNIT).restarts == 3
    unit = host.unit(UNIT)
    said = ask(host, "unit-start", ("unit", UNIT), ("ground-invocation", unit.invocation), ("ground-state", "failed"))
    assert said == 0
    clock.now_s += 0.5
    assert state(host)[0] == "activating"


def test_exit_2_is_not_started_again(host: SimHost, clock: Clock) -> None:
    served(host, clock, text_of(command=f"/opt/venv/bin/python {SERVER} --bad-flag 1"))
    assert state(host) == ("failed", "failed", "exit-code")
    assert (host.unit(UNIT).exec_code, host.unit(UNIT).exec_status) == (1, 2)


def test_an_edited_file_runs_only_after_reload_and_restart(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    host.edit_file(UNIT, text_of(command=f"/opt/venv/bin/python {SERVER} --context-length 4096"))
    unit, before = host.unit(UNIT), host.unit(UNIT).main
    assert host.units.needs_reload(unit)
    assert "4096" not in unit.definition.commands[0].argv
    host.reload()
    assert not host.units.needs_reload(unit)
    assert "4096" in unit.definition.commands[0].argv
    assert unit.main is before
    host.hand_restart(UNIT)
    clock.now_s += 1
    host.advance()
    assert unit.main is not None
    assert "4096" in unit.main.argv


def test_the_managers_environment_reaches_what_starts_after_it_and_a_boot_forgets_it(
    host: SimHost, clock: Clock
) -> None:
    served(host, clock)
    host.units.enable(UNIT)
    host.set_environment("SGLANG_X", "1")
    assert environment(host, "SGLANG_X") is None
    host.hand_restart(UNIT)
    clock.now_s += 2
    host.advance()
    assert environment(host, "SGLANG_X") == "1"
    host.reboot()
    clock.now_s += 22
    host.advance()
    assert environment(host, "SGLANG_X") is None


def environment(host: SimHost, name: str) -> str | None:
    main = host.unit(UNIT).main
    assert main is not None
    return main.environment(name)


# ---- engines ----


@pytest.mark.parametrize("exit_status", [0])
def test_vllm_exits_0_after_its_core_died_and_systemd_starts_it_again(
    host: SimHost, clock: Clock, exit_status: int
) -> None:
    command = "/opt/venv/bin/python /opt/venv/bin/vllm serve /models/m --port 30001 --tensor-parallel-size 2"
    served(host, clock, text_of(command=command))
    host.crash(UNIT)
    clock.now_s += 1
    assert state(host)[:2] == ("activating", "auto-restart")
    assert (host.unit(UNIT).exec_code, host.unit(UNIT).exec_status) == (1, exit_status)


def test_a_lost_rank_ends_the_whole_server_within_a_second(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    engine = host.engine(UNIT)
    assert engine is not None
    host.machine.processes.signal(engine.ranks[1], "KILL")
    assert state(host)[0] == "active"
    clock.now_s += 1
    assert state(host)[:2] == ("activating", "auto-restart")
    assert host.unit(UNIT).exec_status == 9


def test_a_card_that_is_too_full_fails_the_load_with_torchs_words(host: SimHost, clock: Clock) -> None:
    host.foreign_trainer(0, 90_000)
    served(host, clock, wait_s=8)
    assert any("CUDA out of memory" in line.text for line in host.machine.journal)
    assert state(host)[0] == "activating"


def test_a_taken_port_is_found_by_sglang_after_its_load_only(host: SimHost, clock: Clock) -> None:
    host.hand_server(30001, ())
    served(host, clock, wait_s=4)
    assert state(host)[0] == "active"
    clock.now_s += 6
    assert state(host)[0] == "activating"
    assert any("address already in use" in line.text for line in host.machine.journal)


async def test_a_router_generates_through_prefill_and_decode_on_two_hosts(clock: Clock) -> None:
    near, far = sim_host(clock), sim_host(clock, seed=1)
    near.neighbours["192.0.2.2"] = far
    router = ("-m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30001 8998 "
              "--decode http://192.0.2.2:30001 --port 30000")  # fmt: skip
    served(near, clock, text_of(command=f"/opt/venv/bin/python {SERVER} --disaggregation-mode prefill"), wait_s=0)
    served(far, clock, text_of(command=f"/opt/venv/bin/python {SERVER} --disaggregation-mode decode"), wait_s=0)
    near.edit_file("router.service", text_of(command=f"/opt/venv/bin/python {router}"), reload=True)
    near.hand_start("router.service")
    clock.now_s += 1
    assert b'"completion_tokens": 4' not in generate(near, 30000)
    clock.now_s += 9
    assert b'"completion_tokens": 4' in generate(near, 30000)
    assert b"bootstrap room" in generate(near, 30001)
    far.cut = True
    assert b'"completion_tokens": 4' not in generate(near, 30000)


def generate(host: SimHost, port: int) -> bytes:
    body = b'{"model": "/models/m", "prompt": "1", "max_tokens": 4}'
    lines = (("port", str(port)), ("url-path", "/v1/completions"), ("timeout-s", "5"))
    return host.answer((files.HELPER_PATH, "probe"), request(NONCE, lines, body)).stdout


# ---- the look, and what people and hardware do ----


async def test_a_zombie_holds_nothing_and_goes_with_its_parent(host: SimHost, clock: Clock) -> None:
    parent = host.someone(("/usr/bin/python3", "boss.py"), "a parent that does not wait")
    child = host.machine.processes.spawn(("/usr/bin/python3",), parent.cgroup, "foreign", "its child", parent=parent)
    host.machine.cards.take(child, 1, 5_000)
    child.unreaped = True
    host.machine.processes.signal(child, "KILL")
    clock.now_s += 1
    whole = host.answer((files.HELPER_PATH, "observe"), request(NONCE, (("whole-table", "1"),))).stdout
    assert f"/proc/{child.pid}/stat\0{child.pid} (python3) Z".encode() in whole
    seen = await look_at(host)
    assert used(seen) == [0, 0]
    assert seen.apps == ()
    assert ask(host, "signal", ("signal", "KILL"), ("target", f"{child.pid} {child.start}")) == 0
    assert host.history[-2].came == "gone"
    host.leave(parent)
    assert child.pid not in host.processes


async def test_a_hung_nvidia_smi_is_unknown_and_named_from_the_second_look_on(host: SimHost) -> None:
    host.hung_smi(True)
    first = await look_at(host, UNIT)
    assert isinstance(first.gpus, Unknown)
    assert first.gpus.reason is Reason.TOOL_TIMED_OUT
    second = await look_at(host, UNIT)
    assert isinstance(second.apps, Unknown)
    assert "hangs since an earlier look" in second.apps.detail
    host.hung_smi(False)
    assert unknowns(await look_at(host, UNIT)) == []


async def test_a_lost_card_moves_the_others_up(clock: Clock) -> None:
    host = sim_host(clock, gpus=4)
    host.lose_card(1)
    seen = await look_at(host)
    assert not isinstance(seen.gpus, Unknown)
    assert [(gpu.index, int(gpu.uuid[-2:])) for gpu in seen.gpus] == [(0, 0), (1, 2), (2, 3)]


async def test_memory_of_the_dead_is_free_a_quarter_of_a_second_later(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    host.crash(UNIT)
    clock.now_s += 0.2
    assert used(await look_at(host))[0] > 100_000
    clock.now_s += 0.1
    assert used(await look_at(host)) == [0, 0]


def used(seen: object) -> list[int]:
    return [gpu.memory_used_mib for gpu in seen.gpus]  # type: ignore[attr-defined]


def test_a_reused_pid_is_not_signalled(host: SimHost, clock: Clock) -> None:
    served(host, clock)
    old = host.unit(UNIT).main
    assert old is not None
    clock.now_s += 1
    new = host.reuse_pid(old.pid)
    assert ask(host, "signal", ("signal", "KILL"), ("target", f"{old.pid} {old.start}")) == 0
    assert host.history[-2].came == "changed"
    assert host.processes[new.pid] is new
    assert ask(host, "signal", ("signal", "KILL"), ("target", f"{new.pid} {new.start}")) == 0
    assert (host.history[-2].came, host.history[-2].whose) == ("ok", "foreign")
    assert new.pid not in host.processes


def ask(host: SimHost, verb: str, *lines: tuple[str, str]) -> int:
    """A verb under a fence of our own; its exit status."""
    host.write_fence("s 1 r")
    own = (("fence", "s 1 r"), ("boot", host.machine.boot_id))
    return host.answer((files.HELPER_PATH, verb), request(NONCE, (*own, *lines))).exit_status


async def test_the_helper_is_installed_by_the_daemons_own_commands_and_doctor_is_content(clock: Clock) -> None:
    host = SimHost("a", now=clock)
    road = SimRoad(host)
    assert (await ensure_helper(road, SPEC, True)).how == "pushed"
    assert host.disk.digest(files.GATE_PATH) == hashlib.sha256(files.gate_text()).hexdigest()
    assert (await ensure_helper(road, SPEC, True)).how == "current"
    checks = await examine(road, SPEC)
    assert [check.name for check in checks if check.ok is False] == []


async def test_its_wall_clock_starts_where_it_is_told_and_doctor_finds_it_right(clock: Clock) -> None:
    host = SimHost("a", now=clock, wall_s=1_800_000_000.0)
    clock.now_s += 30
    told = {away_s: await examine(SimRoad(host), SPEC, now_s=1_800_000_030.0 + away_s) for away_s in (0, 60)}
    assert {away_s: _clock_ok(checks) for away_s, checks in told.items()} == {0: True, 60: False}


def _clock_ok(checks: list[Check]) -> bool | None:
    return next(check.ok for check in checks if check.name == "clock")


# ---- determinism, and looks that are always whole ----

MOVES = (
    *("crash", "kill_launcher", "hand_stop", "hand_start", "hand_restart", "edit", "dropin", "mask", "unmask"),
    *("trainer", "end", "wedge", "reboot", "disable", "enable", "stuck", "thaw", "first", "wait", "wait"),
)


def play(host: SimHost, clock: Clock, dice: random.Random) -> None:
    """One thing that may befall a host."""
    match dice.choice(MOVES):
        case "edit":
            host.edit_file(UNIT, text_of(f"# {dice.randrange(9)}"), reload=dice.random() < 0.5)
        case "dropin":
            host.add_dropin(UNIT, "90-x.conf", "[Service]\nEnvironment=X=1\n", reload=dice.random() < 0.5)
        case "trainer":
            host.foreign_trainer(dice.randrange(2), dice.randrange(500, 60_000))
        case "end":
            host.end_trainers()
        case "enable":
            host.units.enable(UNIT)
        case "stuck":
            host.kill_launcher(UNIT, stuck=True, port=dice.random() < 0.5)
        case "first":
            host.first_request_crash(UNIT, dice.random() < 0.5)
        case "wait":
            clock.now_s += dice.uniform(1, 30)
        case "reboot":
            host.reboot()
            clock.now_s += 25
        case "thaw":
            host.thaw()
        case name:
            getattr(host, name)(UNIT)
    clock.now_s += dice.uniform(0, 4)


def trace(seed: int) -> bytes:
    """Every byte that a host of that seed prints while a hundred things befall it."""
    clock, dice = Clock(), random.Random(seed)
    host = sim_host(clock, seed=seed)
    served(host, clock, wait_s=1)
    said = b""
    for _ in range(100):
        play(host, clock, dice)
        lines = (("unit", UNIT), ("port", "30001"), ("env", "CUDA_VISIBLE_DEVICES"))
        said += host.answer((files.HELPER_PATH, "observe"), request(NONCE, lines)).stdout
        said += generate(host, 30001)
    return said + host.answer((files.HELPER_PATH, "journal"), request(NONCE, (("unit", UNIT),))).stdout


def test_the_same_seed_prints_the_same_bytes_and_another_seed_others() -> None:
    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_befalls_a_host_its_looks_are_whole_and_tell_no_truth(seed: int) -> None:
    clock, dice = Clock(), random.Random(seed)
    host = sim_host(clock, seed=seed)
    served(host, clock, wait_s=1)
    for _ in range(60):
        play(host, clock, dice)
        seen = await look_at(host, UNIT)
        assert unknowns(seen) == []
        assert isinstance(seen.apps, tuple)
        assert isinstance(seen.processes, tuple)
        held = {(row.pid, row.memory_mib) for row in seen.apps if isinstance(row, GpuApp)}
        really = {(p.pid, mib) for p in host.processes.values() for mib in p.memory.values()}
        assert held == really
        assert {pid for pid, _ in held} <= {process.id.pid for process in seen.processes}
        raw = host.answer((files.HELPER_PATH, "observe"), request(NONCE, (("unit", UNIT),))).stdout
        assert not any(word in raw for word in (b"foreign", b"leftover", b"instance", b"somebody"))


def test_the_files_that_tests_name_are_the_daemons() -> None:
    assert f"{files.UNIT_FOLDER}/{UNIT}" == PATH
