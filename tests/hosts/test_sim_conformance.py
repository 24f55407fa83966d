"""The simulated machine held against a real one: the same steps on both, and the same answers of the helper.

What is replaced before comparing is listed in `sim_shapes`; exit statuses, section names and other bytes must agree.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import pprint
from collections.abc import Callable

import pytest
from harness import TestHost

from daemon.probes.report import Answer, parse_answer
from tests.hosts.sim_shapes import Shapes
from tests.hosts.sim_sides import (
    FENCE,
    NO_EXECUTABLE,
    NONCE,
    OLD_UNIT,
    SGLANG_UNIT,
    VLLM_UNIT,
    Real,
    Shot,
    Side,
    Simulated,
)

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
FOLDER = "/etc/systemd/system"
PATH = f"{FOLDER}/{SGLANG_UNIT}"
GATE = b"gpu 0 GPU-00000000-aaaa-4000-8000-000000000000\ngpu 1 GPU-00000000-aaaa-4000-8000-000000000001\nport 30001\n"
SGLANG = ("/opt/venv/bin/python -m sglang.launch_server --model-path /models/m --served-model-name m --host 0.0.0.0 "
          "--port 30001 --tp-size 2")  # fmt: skip
VLLM = ("/opt/venv/bin/python /opt/venv/bin/vllm serve /models/v --served-model-name v --port 30002 "
        "--tensor-parallel-size 2")  # fmt: skip
CHAT = (("port", "30001"), ("url-path", "/v1/chat/completions"), ("method", "POST"), ("timeout-s", "5"),
        ("python", "/opt/venv/bin/python"))  # fmt: skip


def text_of(command: str, *more: str) -> bytes:
    """A unit as Stoker writes it, with an argument that needs quotes."""
    return "\n".join((
        "[Unit]", "After=network-online.target", "StartLimitIntervalSec=3h", "StartLimitBurst=10", "[Service]",
        "Type=exec", "Environment=STOKER_STORE=s1 STOKER_SPEC=sp STOKER_LAUNCH=v1:0123 SPT_NOENV=1",
        'Environment="GREETING=a b\\"c" CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1',
        "ExecStartPre=+/bin/sh -c '[ ! -x /var/lib/stoker/gate ] || exec /var/lib/stoker/gate %n'",
        f"ExecStart=:{command}", "TimeoutStartSec=infinity", "KillMode=mixed", "TimeoutStopSec=1min 5s",
        "Restart=always", "RestartSec=15", "RestartPreventExitStatus=2", *more, "[Install]",
        "WantedBy=multi-user.target", "",
    )).encode()  # fmt: skip


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def put(side: Side, step: str, text: bytes, before: bytes | None, unit: str = SGLANG_UNIT, gate: bytes = GATE) -> None:
    ground = "-" if before is None else sha(before)
    lines = (("unit", unit), ("path", f"{FOLDER}/{unit}"), ("ground", ground))
    side.ask(step, "put-unit", *lines, body=text, gate=gate)


def fence(side: Side) -> None:
    side.ask("take the fence", "take-fence", ("expected", "-"), ("fence", FENCE))


def chat(tokens: int = 8, model: str = "m") -> bytes:
    said = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "temperature": 0}
    return json.dumps(said).encode()


def a_life(side: Side) -> None:
    """Idle, written, started, loading, ready, asked, killed, restarted, stopped, removed."""
    text = text_of(f'{SGLANG} --note "it is \\"so\\" $HOME %%"')
    side.ask("version", "version")
    side.look("idle")
    fence(side)
    put(side, "written", text, None)
    side.look("look at what was written")
    side.on_unit("enabled", "enable")
    side.on_unit("enabled again", "enable")
    side.look("look at what is enabled")
    side.faults(load_s=4)
    side.on_unit("started", "start")
    side.until(SGLANG_UNIT, ("active", "running"))
    side.wait(0.5)
    side.ask("probe while loading", "probe", ("unit", SGLANG_UNIT), *CHAT, body=chat())
    side.until_up()
    side.wait(0.5)
    side.look("ready")
    probes(side)
    side.ask("journal", "journal", ("unit", SGLANG_UNIT), ("lines", "200"))
    side.ask("journal of the invocation", "journal", ("unit", SGLANG_UNIT), ("lines", "3"),
             ("invocation", side.state(SGLANG_UNIT)[2]))  # fmt: skip
    side.on_unit("started though it runs", "start")
    side.kill(side.state(SGLANG_UNIT)[3])
    side.until(SGLANG_UNIT, ("activating", "auto-restart"))
    side.look("just killed")
    side.wait(0.5)
    side.look("between two starts")
    side.faults(load_s=1)
    side.until(SGLANG_UNIT, ("active", "running"))
    side.until_up()
    side.wait(0.5)
    side.look("restarted by systemd")
    side.ask("journal of the restart", "journal", ("unit", SGLANG_UNIT), ("lines", "3000"))


def probes(side: Side) -> None:
    unit = ("unit", SGLANG_UNIT)
    get = (("method", "GET"), ("timeout-s", "5"), ("python", "/opt/venv/bin/python"))
    side.ask("a generation", "probe", unit, *CHAT, body=chat())
    side.ask("another model", "probe", unit, *CHAT, body=chat(model="other"))
    side.ask("no JSON", "probe", unit, *CHAT, body=b"{")
    side.ask("no such path", "probe", unit, ("port", "30001"), ("url-path", "/nope"), *get)
    side.ask("health", "probe", unit, ("port", "30001"), ("url-path", "/health"), *get)
    side.ask("of no unit", "probe", ("port", "30001"), ("url-path", "/v1/models"), *get)
    side.ask("of a unit that is not", "probe", ("unit", "stoker-none.service"), ("port", "30001"),
             ("url-path", "/v1/models"), *get)  # fmt: skip
    side.ask("nobody listens", "probe", unit, ("port", "31999"), ("url-path", "/health"), *get)


def an_end(side: Side) -> None:
    """A restart with a slow end, a stop, a drop-in with and without reload, a removal."""
    text = text_of(SGLANG)
    fence(side)
    put(side, "written", text, None)
    side.faults(load_s=0.5, linger_s=12)
    side.on_unit("enabled", "enable")
    side.on_unit("started", "start")
    side.until_up()
    side.wait(0.5)
    dropin = f"{FOLDER}/{SGLANG_UNIT}.d/90-mine.conf"
    side.write(dropin, b"[Service]\nEnvironment=MINE=1 SPT_NOENV=2\n")
    side.look("a drop-in that is not loaded")
    side.reload()
    side.look("a drop-in that is loaded")
    control = f"/etc/systemd/system.control/{SGLANG_UNIT}.d/50-MemoryMax.conf"
    side.write(control, b"[Service]\nMemoryMax=infinity\n")
    side.look("one of set-property")
    for step, path, ground in (
        ("set aside: another text", dropin, "0" * 64),
        ("set aside: not of this unit", f"{FOLDER}/x.service.d/90-mine.conf", "0" * 64),
        ("set aside: no drop-in", f"{FOLDER}/{SGLANG_UNIT}", sha(text)),
        ("set aside: not there", f"{FOLDER}/{SGLANG_UNIT}.d/91-mine.conf", "0" * 64),
        ("set aside", control, sha(b"[Service]\nMemoryMax=infinity\n")),
    ):
        side.ask(step, "set-aside", ("unit", SGLANG_UNIT), ("path", path), ("ground", ground))
    side.look("after what was set aside")
    side.on_unit("restarted", "restart")
    side.look("ending to start again")
    side.until(SGLANG_UNIT, ("active", "running"))
    side.until_up()
    side.wait(0.5)
    side.look("started again")
    side.write(PATH, text.replace(b"--tp-size 2", b"--tp-size 1"))
    side.look("edited without reload")
    side.reload()
    side.look("edited with reload")
    side.ask("removed while it runs", "remove-unit", ("unit", SGLANG_UNIT), ("path", PATH),
             ("ground", sha(text.replace(b"--tp-size 2", b"--tp-size 1"))))  # fmt: skip
    side.on_unit("stopped", "stop")
    side.look("stopping")
    side.until(SGLANG_UNIT, ("inactive", "dead"))
    side.glance()
    side.look("stopped: look")
    side.on_unit("stopped again", "stop")
    side.on_unit("disabled", "disable")
    side.look("disabled: look")
    side.on_unit("disabled again", "disable")
    side.remove(dropin)
    side.ask("removed", "remove-unit", ("unit", SGLANG_UNIT), ("path", PATH),
             ("ground", sha(text.replace(b"--tp-size 2", b"--tp-size 1"))))  # fmt: skip
    side.ask("removed again", "remove-unit", ("unit", SGLANG_UNIT), ("path", PATH), ("ground", "-"))
    side.look("removed: look")


def failures(side: Side) -> None:
    """A wrong flag, a gate that waits, a stop in the gate, a mask, an executable that is not there."""
    good, bad = text_of(SGLANG), text_of(f"{SGLANG} --bad-flag")
    fence(side)
    put(side, "bad", bad, None)
    side.on_unit("bad started", "start")
    side.until(SGLANG_UNIT, ("failed", "failed"))
    side.look("failed: exit 2")
    side.ask("journal of the failure", "journal", ("unit", SGLANG_UNIT), ("lines", "3000"))
    side.hold_card(0, 2000)
    put(side, "good", good, bad)
    side.faults(load_s=0.5)
    side.on_unit("good started", "start")
    side.until(SGLANG_UNIT, ("activating", "start-pre"))
    side.wait(1.5)
    side.look("waits in the gate")
    side.on_unit("stopped in the gate", "stop")
    side.until(SGLANG_UNIT, ("failed", "failed"))
    side.look("stopped in the gate: look")
    side.on_unit("started once more", "start")
    side.until(SGLANG_UNIT, ("activating", "start-pre"))
    side.wait(1)
    side.let_go()
    side.until_up()
    side.wait(0.5)
    side.look("the gate opened")
    side.ask("journal of the gate", "journal", ("unit", SGLANG_UNIT), ("lines", "3000"))
    side.on_unit("stopped", "stop")
    side.until(SGLANG_UNIT, ("inactive", "dead"))
    side.glance()
    side.mask(SGLANG_UNIT)
    side.look("masked")
    for verb in ("start", "enable", "stop", "restart", "disable"):
        side.on_unit(f"masked: {verb}", verb)
    put(side, "masked: put", bad, good)
    side.unmask(SGLANG_UNIT)
    side.look("unmasked")
    absent = good.replace(b"/opt/venv/bin/python", NO_EXECUTABLE.encode())
    put(side, "absent executable", absent, good)
    side.on_unit("absent started", "start")
    side.until(SGLANG_UNIT, ("activating", "auto-restart"))
    side.look("absent executable: look")


def another_engine(side: Side) -> None:
    """vLLM: loading, ready, its core lost, exit 0 and started again; a second one that finds the port taken."""
    gate = GATE.replace(b"30001", b"30002")
    text = text_of(VLLM, "RestartSec=30")
    fence(side)
    put(side, "written", text, None, VLLM_UNIT, gate)
    side.faults(load_s=1, crash_above=20)
    side.on_unit("started", "start", VLLM_UNIT)
    side.until(VLLM_UNIT, ("active", "running"))
    side.until_up(30002)
    side.wait(0.5)
    side.look("ready", VLLM_UNIT, ports=(30002,))
    lines = (("unit", VLLM_UNIT), ("port", "30002"), ("url-path", "/v1/completions"), ("timeout-s", "5"))
    body = json.dumps({"model": "v", "prompt": "hi", "max_tokens": 8}).encode()
    side.ask("a generation", "probe", *lines, body=body)
    side.ask("the last generation", "probe", *lines, body=body.replace(b"8", b"30"))
    side.until(VLLM_UNIT, ("activating", "auto-restart"))
    side.glance()
    side.look("exited 0", VLLM_UNIT, ports=(30002,))
    side.ask("journal", "journal", ("unit", VLLM_UNIT), ("lines", "3000"))


def other_people(side: Side) -> None:
    """A person's process on a card and a port that a unit wants: seen with its session, waited for, never touched."""
    text = text_of(SGLANG)
    fence(side)
    side.session(1, 3000, 30001)
    side.look("a person's process")
    lines = (("port", "30001"), ("url-path", "/v1/models"), ("method", "GET"), ("timeout-s", "2"))
    side.ask("their port never answers", "probe", *lines)
    put(side, "written", text, None)
    side.on_unit("started", "start")
    side.until(SGLANG_UNIT, ("activating", "start-pre"))
    side.wait(1.5)
    side.look("waits for a person")
    side.ask("journal of the gate", "journal", ("unit", SGLANG_UNIT), ("lines", "2"))


def shared_memory(side: Side) -> None:
    """What lies in /dev/shm under engines' names, and what a sweep takes of it."""
    fence(side)
    for name, user in (("nccl-a", "root"), ("psm_b", "alice"), ("sem.mp-c", "root"), ("sem.c", "root"), ("x", "root")):
        side.leave(name, user)
    side.leave("nccl-held", "root", held=True)
    asked = (("leftovers", "1"), ("limit-ms", "9000"))
    side.ask("what is left", "observe", ("unit", SGLANG_UNIT), *asked)
    rows = [line.split(" ") for line in answer_of(side.shots["what is left"]).sections["shm"].text.splitlines()[1:]]
    now = {row[0]: ("target", f"{row[0]} {row[1]} {row[4]} {row[5]}") for row in rows}
    down = (("unit", SGLANG_UNIT), ("ground-invocation", "-"), ("ground-state", "inactive"))
    stale = ("target", f"psm_b 0 {now['psm_b'][1].split(' ', 2)[2]}")
    side.ask("sweep", "sweep-shm", *down, now["nccl-a"], now["nccl-held"], stale, ("target", "nccl-z 0 1 1.0"))
    side.ask("what is left then", "observe", ("unit", SGLANG_UNIT), *asked)
    side.ask("a foreign fence", "sweep-shm", *down, now["sem.mp-c"], fence="store-9 1 run-9")
    side.ask("not down", "sweep-shm", *down[:2], ("ground-state", "active"), now["sem.mp-c"])
    side.ask("another invocation", "sweep-shm", down[0], ("ground-invocation", "f" * 32), down[2], now["sem.mp-c"])
    for step, target in (("a path", "../x 0 1 1.0"), ("three words", "nccl-a 0 1"), ("five words", "nccl-a 0 1 1.0 x")):
        side.ask(step, "sweep-shm", *down, ("target", target))
    side.ask("no target", "sweep-shm", *down)
    side.ask("no unit", "sweep-shm", now["sem.mp-c"])


def answer_of(shot: Shot) -> Answer:
    found = parse_answer(shot.stdout, NONCE)
    assert isinstance(found, Answer), found
    return found


def an_adopted_unit(side: Side) -> None:
    """A unit that somebody else wrote, with our drop-in over it."""
    theirs = text_of(SGLANG).replace(b"STOKER_STORE=s1 STOKER_SPEC=sp STOKER_LAUNCH=v1:0123 ", b"")
    ours = (
        b"[Service]\nEnvironment=STOKER_STORE=s1\nExecStart=\nExecStart=:"
        + f"{SGLANG} --context-length 4096\n".encode()
    )
    path = f"{FOLDER}/{OLD_UNIT}.d/50-stoker.conf"
    own = (("unit", OLD_UNIT), ("path", path))
    fence(side)
    side.write(f"{FOLDER}/{OLD_UNIT}", theirs)
    side.reload()
    side.faults(load_s=0.5)
    side.on_unit("started", "start", OLD_UNIT)
    side.until_up()
    side.wait(0.5)
    side.look("theirs", OLD_UNIT, dropins=(OLD_UNIT,))
    side.ask("our drop-in", "put-unit", *own, ("ground", "-"), body=ours, gate=GATE)
    side.look("ours over theirs", OLD_UNIT, dropins=(OLD_UNIT,))
    side.on_unit("restarted", "restart", OLD_UNIT)
    side.until(OLD_UNIT, ("activating", "start-pre"), ("active", "running"))
    side.until_up()
    side.wait(0.5)
    side.glance()
    side.look("ours runs", "stoker-none.service")
    side.ask("removed while it runs", "remove-unit", *own, ("ground", sha(ours)))
    side.on_unit("stopped", "stop", OLD_UNIT)
    side.until(OLD_UNIT, ("inactive", "dead"))
    side.ask("removed", "remove-unit", *own, ("ground", sha(ours)))
    side.glance()
    side.look("theirs again", OLD_UNIT, dropins=(OLD_UNIT,))


def refusals(side: Side) -> None:
    """What is not there, a foreign fence, a changed ground, a hold, a wrong identity, and requests that are wrong."""
    on = (("unit", SGLANG_UNIT), ("ground-invocation", "-"), ("ground-state", "inactive"))
    side.ask("no fence yet", "unit-start", *on)
    fence(side)
    side.ask("taken again", "take-fence", ("expected", "-"), ("fence", "store-2 1 run-2"))
    side.ask("handed over", "take-fence", ("expected", FENCE), ("fence", FENCE))
    for verb in ("start", "enable", "stop", "disable", "restart"):
        side.on_unit(f"nothing to {verb}", verb)
    side.ask("foreign fence", "unit-start", *on, fence="store-9 1 run-9")
    text = text_of(SGLANG)
    put(side, "written", text, None)
    put(side, "another file", text, None)
    side.on_unit("another invocation", "start", ground="f" * 32)
    side.on_unit("another state", "start", state="active")
    side.raw("another boot", "unit-start", _lines(("fence", FENCE), ("boot", "0" * 36), *on))
    side.on_unit("started", "start")
    side.until_up()
    main = side.state(SGLANG_UNIT)[3]
    side.look("running")
    side.ask("wrong identity", "signal", ("signal", "TERM"), ("target", f"{main} 1"), ("target", "999999 5"),
             ("target", "1 1"))  # fmt: skip
    side.write("/etc/stoker/hold", b"mine\nsecond line\n")
    side.on_unit("held", "stop")
    put(side, "held: put", text, text)
    side.ask("held: fence", "take-fence", ("expected", FENCE), ("fence", FENCE))
    side.look("held: look")
    side.remove("/etc/stoker/hold")
    for step, verb, stdin in _malformed():
        side.raw(step, verb, stdin)


def _lines(*lines: tuple[str, str]) -> bytes:
    from daemon.verbs import request
    from tests.hosts.sim_sides import NONCE

    return request(NONCE, lines)


def _malformed() -> list[tuple[str, str, bytes]]:
    head = b"nonce 0123456789abcdef0123456789abcdef\n"
    unit, fenced = f"unit {SGLANG_UNIT}\n".encode(), f"fence {FENCE}\n".encode()
    path = f"path {PATH}\n".encode()
    return [
        ("no request", "version", b""),
        ("no nonce", "version", b"hello\n.\n"),
        ("a short nonce", "version", b"nonce abc\n.\n"),
        ("an upper nonce", "version", head.upper() + b".\n"),
        ("no verb", "", head + b".\n"),
        ("two words", "version more", head + b".\n"),
        ("unknown verb", "reboot", head + b".\n"),
        ("unknown verb and key", "reboot", head + b"foo 1\n.\n"),
        ("unknown key", "version", head + b"foo 1\n.\n"),
        ("cut", "version", head + b"port 1\n"),
        ("cut in a line", "version", head + b"port 1\n."),
        ("a unit outside", "observe", head + b"unit ../x.service\n.\n"),
        ("a unit of another kind", "observe", head + b"unit x.timer\n.\n"),
        ("an octal port", "observe", head + b"port 099\n.\n"),
        ("a long port", "observe", head + b"port 123456\n.\n"),
        ("a negative limit", "observe", head + b"limit-ms -1\n.\n"),
        ("a wrong name", "observe", head + b"env A-B\n.\n"),
        ("a wrong method", "probe", head + b"method get\n.\n"),
        ("a wrong address", "probe", head + b"address a/b\n.\n"),
        ("a wrong invocation", "journal", head + b"invocation xyz\n.\n"),
        ("a fence of two words", "unit-start", head + unit + b"fence a 1\n.\n"),
        ("no fence", "put-unit", head + unit + path + b"ground -\nbody 1\n.\nx"),
        ("no body", "put-unit", head + unit + path + b"ground -\n.\n"),
        ("a cut body", "put-unit", head + fenced + unit + path + b"ground -\nbody 9\n.\nx"),
        ("another path", "put-unit", head + unit + b"path /etc/passwd\nground -\nbody 1\n.\nx"),
        ("no path", "remove-unit", head + unit + b".\n"),
        ("a signal of others", "signal", head + b"signal HUP\n.\n"),
        ("no target", "signal", head + b"signal TERM\n.\n"),
        ("pid 0", "signal", head + b"signal TERM\ntarget 0 1\n.\n"),
        ("three words", "signal", head + b"signal TERM\ntarget 7 1 2\n.\n"),
        ("a cgroup too few", "signal", head + b"signal TERM\ntarget 7 1\ntarget 8 1\nbody 2\n.\n/\n"),
        ("cut cgroups", "signal", head + b"signal TERM\ntarget 7 1\nbody 9\n.\n/\n"),
        ("no unit", "unit-start", head + b".\n"),
        ("two units", "unit-start", head + unit + b"unit b.service\n.\n"),
        ("journal of nothing", "journal", head + b".\n"),
        ("probe of two units", "probe", head + b"unit a.service\nunit b.service\nport 1\n.\n"),
        ("probe of no port", "probe", head + b".\n"),
        ("probe of two ports", "probe", head + b"port 1\nport 2\n.\n"),
        ("probe of no path", "probe", head + b"port 1\nurl-path x\n.\n"),
    ]


PLAYS = (a_life, an_end, failures, another_engine, other_people, shared_memory, an_adopted_unit, refusals)


def difference(real: object, simulated: object) -> str:
    """Both forms line by line."""
    texts = (pprint.pformat(one, width=150).replace("\\n", "\n").splitlines() for one in (real, simulated))
    return "\n".join(
        line for line in difflib.unified_diff(*texts, "real", "simulated", n=0, lineterm="") if line[:2] != "@@"
    )


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_the_simulated_machine_answers_as_a_real_one(host: TestHost, play: Callable[[Side], None]) -> None:
    real, simulated = Real(host), Simulated()
    play(real)
    play(simulated)
    assert list(real.shots) == list(simulated.shots)
    theirs, ours = Shapes(), Shapes()
    differing = []
    for step in real.shots:
        want, got = theirs.of(real.shots[step]), ours.of(simulated.shots[step])
        differing += [
            f"{step}: {part}\n{difference(want.get(part), got.get(part))}"
            for part in {**want, **got}
            if want.get(part) != got.get(part)
        ]
    assert not differing, f"{len(differing)} differences\n" + "\n".join(differing)
