"""`stoker strays` as a person meets it: what it lists, what it asks, what it does and never does."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
import yaml

from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from daemon.store import Store
from tests.cli.cli_stage import Daemon
from tests.cli.stray_scene import Scene, scene
from tests.cli.test_commands import applied

pytestmark = pytest.mark.strays


@pytest.fixture
def stage(daemon: Daemon) -> Scene:
    applied(daemon)
    return scene(daemon)


def pids(made: Scene) -> str:
    return ",".join(str(proc.pid) for proc in made.orphans)


def told(daemon: Daemon) -> list[str]:
    async def read(store: Store) -> list[str]:
        return [f"{its.action}: {its.message}" for its in await store.events(limit=200)]

    found: list[str] = daemon.on_loop(read)
    return found


def alive(made: Scene) -> list[int]:
    return [proc.pid for proc in made.orphans if proc.pid in made.driver.box.procs]


@pytest.mark.parametrize("columns", ["80", "140"])
@pytest.mark.parametrize("args", [("strays",), ("strays", "gpu-a"), ("strays", "list", "gpu-a", "--all"),
                                  ("describe", "host", "gpu-a")])  # fmt: skip
def test_each_is_shown_with_its_proof_within_the_terminal(stage: Scene, args: tuple[str, ...], columns: str) -> None:
    done = stage.daemon.stoker(*args, COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for orphan in stage.orphans:
        assert f"{orphan.pid} orphan-proven ReportOnly" in text
    for part in ("carries our mark and its unit is not live", "in the cgroup of live unit train.service", "GPU 2"):
        assert part in text
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "s3cr3tValue99" not in done.stdout
    assert not [char for char in done.stdout if char != "\n" and not char.isprintable()]
    assert ("Managed" in done.stdout) is ("--all" in args)


def test_a_command_line_of_a_million_characters_moves_nothing(daemon: Daemon) -> None:
    applied(daemon)
    made = scene(daemon, crowd=0, name="A\x1b]0;x\x07" * 150_000)
    for args in (("strays", "gpu-a"), ("strays", "-o", "wide"), ("describe", "host", "gpu-a")):
        done = daemon.stoker(*args, COLUMNS="80")
        assert str(made.foreign.pid) in done.stdout
        assert len(done.stdout) < 6000
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout


def test_output_for_programs_is_what_the_api_says(stage: Scene) -> None:
    whole = json.loads(stage.daemon.stoker("strays", "gpu-a", "-o", "json").stdout)
    assert (whole["kind"], whole["host"]) == ("StrayList", "gpu-a")
    assert [its["pid"] for its in whole["items"]] == [*(proc.pid for proc in stage.orphans), stage.foreign.pid]
    written = yaml.safe_load(stage.daemon.stoker("strays", "gpu-a", "-o", "yaml").stdout)
    assert [its["proof"] for its in written["items"]] == [its["proof"] for its in whole["items"]]
    several = json.loads(stage.daemon.stoker("strays", "-o", "json").stdout)
    assert [its["host"] for its in several["items"]] == ["gpu-a"]


def test_describe_says_who_holds_each_card_with_its_memory(stage: Scene) -> None:
    text = stage.daemon.stoker("describe", "host", "gpu-a").stdout
    first, _, rest = text.partition("\nGPUs\n")[2].partition("\nPlan\n")
    cards = [" ".join(row.split()) for row in first.splitlines()[2:6]]
    assert cards[0].startswith("0 20000/143771 MiB usable GPU-")
    assert cards[0].endswith(f"pid {stage.managed.pid} (managed of stoker-m.server.service), 20000 MiB")
    assert f"pid {stage.orphans[1].pid} (orphan-proven of stoker-n.server.service), 70000 MiB" in cards[3]
    assert f"pid {stage.foreign.pid} (foreign), 4000 MiB" in cards[3]
    assert rest


def test_a_crowd_is_cut_where_it_is_not_the_list_itself(daemon: Daemon) -> None:
    applied(daemon)
    made = scene(daemon, crowd=24)
    text = daemon.stoker("describe", "host", "gpu-a").stdout
    conditions, _, rest = text.partition("\nGPUs\n")
    assert conditions.count("pid ") == 3
    assert "and 21 more, see `stoker strays`" in conditions
    assert "; and 8 more" in rest.partition("\nPlan\n")[0]
    listed = rest.partition("\nStrays\n")[2]
    assert all(f"\n{proc.pid} " in listed for proc in made.orphans)


def test_what_is_not_known_is_said_and_nothing_is_called_clean(stage: Scene) -> None:
    stage.hidden = {"apps": Unknown(Reason.TOOL_TIMED_OUT, "nvidia-smi hung")}
    stage.passes()
    done = stage.daemon.stoker("strays", "gpu-a")
    assert done.stdout == "gpu-a: gpuProcesses not known: ToolTimedOut: nvidia-smi hung\n"
    assert " ?\n" in stage.daemon.stoker("describe", "host", "gpu-a").stdout
    stage.hidden = {"units": Unknown(Reason.TRUNCATED, "cut")}
    stage.passes()
    assert stage.daemon.stoker("strays").stdout == "gpu-a: holders not known: Truncated: cut\n"
    done = stage.daemon.stoker("strays", "clear", "gpu-a", "--yes", "--pid", pids(stage))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "stoker: gpu-a: holders not known: Truncated: cut\n")


def test_a_clean_host_is_called_so(daemon: Daemon) -> None:
    applied(daemon)
    made = scene(daemon, crowd=0)
    del made.driver.box.procs[made.foreign.pid]
    made.passes()
    assert daemon.stoker("strays").stdout == "gpu-a: no strays\n"
    assert "Managed" in daemon.stoker("strays", "--all").stdout


def test_orphans_are_cleared_by_a_persons_word_and_their_end_is_awaited(stage: Scene) -> None:
    with stage.going_on():
        done = stage.daemon.stoker("strays", "clear", "gpu-a", "--yes", "--pid", pids(stage))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"pid {proc.pid}: gone" in done.stdout.splitlines() for proc in stage.orphans)
    assert alive(stage) == []
    assert {stage.foreign.pid, stage.managed.pid} <= set(stage.driver.box.procs)
    said = told(stage.daemon)
    assert any(text.startswith("ask-clear: ") and f"asked to clear pid {pids(stage).replace(',', ', ')}" in text
               for text in said)  # fmt: skip
    assert all(any(text.startswith(f"clear: pid {proc.pid}, which ") for text in said) for proc in stage.orphans)


def test_a_stubborn_one_is_killed_after_its_grace(stage: Scene) -> None:
    stage.orphans[0].stubborn = True
    with stage.going_on():
        done = stage.daemon.stoker("strays", "clear", "gpu-a", "-y", "--pid", str(stage.orphans[0].pid))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        f"pid {stage.orphans[0].pid}: TERM sent", f"pid {stage.orphans[0].pid}: KILL sent",
        f"pid {stage.orphans[0].pid}: gone",
    ] or done.stdout.splitlines()[-2:] == [  # what came between two glances
        f"pid {stage.orphans[0].pid}: TERM sent", f"pid {stage.orphans[0].pid}: gone",
    ]  # fmt: skip
    assert [signal for signal, _ in stage.driver.box.signalled] == ["TERM", "KILL"]


@pytest.mark.parametrize(("which", "reason"), [("foreign", "ForeignHolder"), ("managed", "Managed")])
def test_foreign_and_managed_ones_are_refused(stage: Scene, which: str, reason: str) -> None:
    proc = getattr(stage, which)
    with stage.going_on():
        done = stage.daemon.stoker("strays", "clear", "gpu-a", "--yes", "--pid", str(proc.pid))
    assert done.returncode == 1
    assert done.stderr.startswith(f"stoker: not cleared: pid {proc.pid}: {reason}: ")
    assert done.stderr.count("\n") == 1
    assert stage.driver.box.signalled == []


def test_of_several_the_refused_are_named_and_the_rest_is_cleared(stage: Scene) -> None:
    with stage.going_on():
        done = stage.daemon.stoker(
            "strays", "clear", "gpu-a", "--yes", "--pid", str(stage.foreign.pid), "--pid", str(stage.orphans[0].pid)
        )
    assert done.returncode == 1
    assert f"not cleared: pid {stage.foreign.pid}: ForeignHolder" in done.stderr
    assert f"pid {stage.orphans[0].pid}: gone" in done.stdout
    assert stage.foreign.pid in stage.driver.box.procs


def test_nothing_is_cleared_where_nothing_may_be_changed(stage: Scene) -> None:
    stage.withheld = Reason.OBSERVE_ONLY
    stage.passes()
    assert "gpu-a: nothing is changed: ObserveOnly" in stage.daemon.stoker("strays").stdout
    with stage.going_on():
        done = stage.daemon.stoker("strays", "clear", "gpu-a", "--yes", "--pid", pids(stage))
    assert done.returncode == 1
    assert "nothing may be changed on gpu-a now: ObserveOnly: mode is observe" in done.stderr
    assert alive(stage) == [proc.pid for proc in stage.orphans]


def test_what_stops_being_clearable_on_the_way_is_said(stage: Scene) -> None:
    stage.orphans[0].stubborn = True
    proc = stage.orphans[0]
    command = ["strays", "clear", "gpu-a", "--yes", "--timeout", "60", "--pid", str(proc.pid)]
    env = {"PATH": os.environ["PATH"], "HOME": str(stage.daemon.data), "STOKER_DATA": str(stage.daemon.data),
           "STOKER_URL": stage.daemon.url}  # fmt: skip
    argv = [sys.executable, "-P", "-c", "from api.cli import main; main()", *command]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while "being looked at again" not in running.stdout.readline():
            assert running.poll() is None
        stage.withheld = Reason.PAUSED
        stage.passes()
        _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert err == f"stoker: pid {proc.pid}: not cleared: Paused: nothing may be changed now\n"
    assert stage.driver.box.signalled == []


def test_what_takes_too_long_is_left_to_the_daemon(stage: Scene) -> None:
    done = stage.daemon.stoker("strays", "clear", "gpu-a", "-y", "--timeout", "1", "--pid", str(stage.orphans[0].pid))
    assert done.returncode == 1
    assert done.stderr == (
        f"stoker: pid {stage.orphans[0].pid} is still there after 1 s; the daemon goes on: stoker strays gpu-a\n"
    )


def test_nothing_is_asked_of_the_daemon_before_a_person_said_yes(stage: Scene) -> None:
    done = stage.daemon.stoker("strays", "clear", "gpu-a", "--pid", pids(stage))
    assert done.returncode == 2
    assert "give --yes" in done.stderr
    master, slave = pty.openpty()
    os.write(master, b"n\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(stage.daemon.data), "STOKER_DATA": str(stage.daemon.data),
           "STOKER_URL": stage.daemon.url}  # fmt: skip
    argv = [sys.executable, "-P", "-c", "from api.cli import main; main()", "strays", "clear", "gpu-a", "--pid"]
    asked = subprocess.run([*argv, pids(stage)], env=env, stdin=slave, capture_output=True, text=True, timeout=60,
                           check=False)  # fmt: skip
    os.close(master)
    os.close(slave)
    assert asked.returncode == 1
    assert "End these 3 processes on gpu-a?" in asked.stdout
    assert not any(text.startswith("ask-clear") for text in told(stage.daemon))


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        ("999999", 1, "pid 999999 holds no GPU, needed port or managed cgroup on gpu-a"),
        ("1;reboot", 2, "give pids"),
        ("-1", 2, "give pids"),
        ("", 2, "give pids"),
    ],
)
def test_a_pid_that_is_not_listed_is_refused(stage: Scene, given: str, status: int, text: str) -> None:
    done = stage.daemon.stoker("strays", "clear", "gpu-a", "--yes", f"--pid={given}")
    assert (done.returncode, text in done.stderr) == (status, True), done.stderr
    assert not any(said.startswith("ask-clear") for said in told(stage.daemon))


def test_an_unknown_host_is_named(stage: Scene) -> None:
    done = stage.daemon.stoker("strays", "nowhere")
    assert (done.returncode, "nowhere" in done.stderr) == (1, True)
