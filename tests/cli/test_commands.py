"""The commands as a person or a script runs them: what they print, where, and with what exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from api.cli.commands import app
from daemon.domain.status import Condition, Event, Reason
from daemon.store import Store, StoredInstance
from tests.cli.cli_stage import NOW, Daemon

HOST = """\
apiVersion: stoker/v1
kind: Host
metadata: {name: gpu-a, labels: {rack: r1}}
spec: {ssh: {address: 192.0.2.10}, gpus: {count: 8}}
"""
SPEC = """\
apiVersion: stoker/v1
kind: ServingSpec
metadata: {name: k26}
spec:
  engine: {name: sglang, python: /opt/venv/bin/python}
  model: {path: /models/m}
  placement: {host: gpu-a, gpus: [0]}
  port: 30001
"""
UNIT = "stoker-k26.server.service"
HOSTILE = "evil \x1b[2J [red]title[/red] \u202etxt.exe\r\x9b1m"


def applied(daemon: Daemon) -> None:
    done = daemon.stoker("apply", "-f", "-", stdin=f"{SPEC}---\n{HOST}")
    assert (done.returncode, done.stdout) == (0, "host/gpu-a created\nservingspec/k26 created\n"), done.stderr


def said(daemon: Daemon, text: str) -> None:
    """Let the daemon have said `text` about everything, as a host might have made it say."""

    async def say(store: Store) -> None:
        spec, host = await store.get("ServingSpec", "k26"), await store.get("Host", "gpu-a")
        drift = [{"layer": "running", "field": text, "declared": "8", "observed": text, "launch": True}]
        instance = {"unit": UNIT, "role": "server", "host": "gpu-a", "ready": "False", "reason": "OrphanWorkers"}
        instance |= {"message": text, "active": "activating", "main_pid": 0, "drift": drift}
        instance |= {"contested": text, "effective": text}
        conditions = [Condition("Ready", "False", Reason.ORPHAN_WORKERS, text, 1)]
        await store.put_status("ServingSpec", spec.uid, {"instances": [instance]}, conditions, NOW)
        plan = [{"action": "unit-start", "target": UNIT, "reason": "UnitInactive", "why": text}]
        strays = [{"pid": 7, "owner": "orphan-proven", "proof": text, "what": text, "verdict": "OrphanWorkers"}]
        status = {"observedGeneration": 1, "plan": plan, "strays": strays, "withheld": "ObserveOnly"}
        status["drift"] = [{"layer": "inventory", "field": "gpus", "declared": "8", "observed": "7", "launch": False}]
        await store.put_status(
            "Host", host.uid, status, [Condition("Clean", "False", Reason.ORPHAN_WORKERS, text)], NOW
        )
        event = Event(Reason.ENGINE_CRASHED, text, "ServingSpec", "k26", "Warning", evidence=f"first\n{text}")
        await store.add_event(event, NOW)

    daemon.on_loop(say)


def test_apply_says_what_became_of_each(daemon: Daemon, tmp_path: Path) -> None:
    applied(daemon)
    folder = tmp_path / "manifests"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.yaml").write_text(SPEC.replace("30001", "30002"))
    (folder / "deep" / "b.yml").write_text(HOST)
    (folder / "notes.txt").write_text("not: read")
    done = daemon.stoker("apply", "-f", str(folder))
    assert done.stdout == "host/gpu-a unchanged\nservingspec/k26 configured\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_apply_orders_jump_hosts_first(daemon: Daemon) -> None:
    inner = HOST.replace("gpu-a", "inner").replace("address: 192.0.2.10", "address: 10.0.0.1, jump: middle")
    middle = HOST.replace("gpu-a", "middle").replace("address: 192.0.2.10", "address: 10.0.0.2, jump: outer")
    outer = HOST.replace("gpu-a", "outer")
    done = daemon.stoker("apply", "-f", "-", stdin="---\n".join([inner, middle, outer]))
    assert done.stdout.split("\n")[:3] == ["host/outer created", "host/middle created", "host/inner created"]


def test_refused_manifest_is_named_by_file_and_path_and_the_others_are_applied(daemon: Daemon, tmp_path: Path) -> None:
    applied(daemon)
    (tmp_path / "bad.yaml").write_text(SPEC.replace("k26", "other").replace("[0]", "[0, 9]"))
    (tmp_path / "good.yaml").write_text(HOST.replace("gpu-a", "gpu-b").replace("2.10", "2.11"))
    done = daemon.stoker("apply", "-f", str(tmp_path / "bad.yaml"), "-f", str(tmp_path / "good.yaml"))
    assert done.returncode == 1
    assert done.stdout == "host/gpu-b created\n"
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"stoker: {tmp_path}/bad.yaml: servingspec/other: spec.") for line in lines), lines
    assert any("gpus[1]: GPU 9 is out of range" in line for line in lines)
    assert any("gpus[0]: GPU 0 of host gpu-a is taken by spec k26" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SPEC + "  env: {A: off}\n", "bad.yaml: spec.env.A: unquoted off"),
        (SPEC + "spec: {}\n", "bad.yaml: spec: key given twice"),
        ("a: [", "bad.yaml: not YAML"),
        ("kind: Pod\n", "bad.yaml: kind: must be Host or ServingSpec"),
        (HOST + "---\n" + HOST, "keep one of them"),
        ("", "nothing to apply"),
    ],
)
def test_unreadable_manifest_stops_apply_before_anything_is_sent(
    daemon: Daemon, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(HOST.replace("gpu-a", "gpu-c") if text else "")
    done = daemon.stoker("apply", "-f", str(tmp_path / "good.yaml"), "-f", str(tmp_path / "bad.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert daemon.stoker("get").stdout.startswith("nothing is declared yet")


def test_missing_file_is_one_line(daemon: Daemon, tmp_path: Path) -> None:
    done = daemon.stoker("apply", "-f", str(tmp_path / "nothing.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"stoker: {tmp_path}/nothing.yaml: No such file or directory\n"


def test_get_prints_a_line_an_object(daemon: Daemon) -> None:
    applied(daemon)
    hosts = daemon.stoker("get", "hosts").stdout.splitlines()
    assert hosts[0].split() == ["HOST", "MODE", "STATUS", "PLAN", "GPUS", "AGE"]
    assert hosts[1].split()[:3] == ["gpu-a", "observe", "NotObservedYet"]
    for kind in ("spec", "specs", "ss", "servingspec", "servingspecs"):
        assert daemon.stoker("get", kind).stdout.splitlines()[1].startswith("k26")
    assert "LABELS" in daemon.stoker("get", "host", "gpu-a", "-o", "wide").stdout
    assert daemon.stoker("get", "hosts", "-l", "rack=r2").stdout.startswith("nothing has the labels rack=r2")


def test_yaml_of_get_can_be_applied_and_json_parsed(daemon: Daemon) -> None:
    applied(daemon)
    said(daemon, HOSTILE)
    text = daemon.stoker("get", "-o", "yaml").stdout
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["Host", "ServingSpec"]
    done = daemon.stoker("apply", "-f", "-", stdin=text)
    assert done.stdout == "host/gpu-a unchanged\nservingspec/k26 unchanged\n", done.stderr
    one: dict[str, Any] = json.loads(daemon.stoker("get", "spec", "k26", "-o", "json").stdout)
    assert one["status"]["instances"][0]["message"] == HOSTILE
    assert len(json.loads(daemon.stoker("get", "-o", "json").stdout)["items"]) == 2


@pytest.mark.parametrize("columns", ["", "80", "140", "40"])
def test_hostile_text_never_moves_the_terminal(daemon: Daemon, columns: str) -> None:
    applied(daemon)
    said(daemon, HOSTILE)
    daemon.hands.recording = {"sections": {"processes": {"output": HOSTILE}}}
    environ = {"COLUMNS": columns} if columns else {}
    for command in (
        ["record", "gpu-a"],
        ["get"],
        ["describe", "spec", "k26"],
        ["describe", "host", "gpu-a"],
        ["events", "-e"],
        ["get", "-o", "yaml"],
        ["get", "-o", "json"],
    ):
        done = daemon.stoker(*command, **environ)
        assert done.returncode == 0, done.stderr
        assert all(char == "\n" or char.isprintable() for char in done.stdout), command
        assert "\u202e" not in done.stdout
        if columns and command[0] == "describe":
            tables = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
            assert max(map(len, tables)) <= max(int(columns), 60)


def test_describe_tells_the_whole_story(daemon: Daemon) -> None:
    applied(daemon)
    said(daemon, "the reason why")
    spec = daemon.stoker("describe", "spec", "k26").stdout
    for part in (
        "Conditions",
        "OrphanWorkers",
        "Drift",
        "declared 8",
        "is left alone: the reason why",
        "does not tell what is in effect:",
        "Plan on gpu-a",
        "unit-start",
        "Events",
        "first",
    ):
        assert part in " ".join(spec.split()), part
    host = daemon.stoker("describe", "host", "gpu-a").stdout
    for part in (
        "root@192.0.2.10 port 22",
        "Strays",
        "orphan-proven",
        "not carried out: ObserveOnly",
        UNIT,
        "declared 8, observed 7",
    ):
        assert part in host, part


def test_events_are_limited_to_an_object(daemon: Daemon) -> None:
    applied(daemon)
    assert "gpu-a" not in daemon.stoker("events", "--for", "spec/k26").stdout
    assert "gpu-a" in daemon.stoker("events", "--for", "gpu-a").stdout
    assert len(daemon.stoker("events", "-n", "1").stdout.splitlines()) == 2
    assert daemon.stoker("events", "--for", "nobody").stdout == "no events for nobody\n"


def test_delete_and_abandon(daemon: Daemon) -> None:
    applied(daemon)
    refused = daemon.stoker("delete", "host", "gpu-a")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "spec k26 is placed on host gpu-a: delete it first" in refused.stderr

    async def instance(store: Store) -> None:
        uid = (await store.get("ServingSpec", "k26")).uid
        await store.put_instance(StoredInstance(uid, "server", "gpu-a", UNIT, f"/etc/systemd/system/{UNIT}"))

    daemon.on_loop(instance)
    assert "is being deleted" in daemon.stoker("delete", "spec", "k26").stdout
    assert "Terminating" in daemon.stoker("get", "specs").stdout
    abandoned = daemon.stoker("delete", "ss", "k26", "--abandon").stdout
    assert f"left on gpu-a: {UNIT}" in abandoned
    assert "abandoned" in daemon.stoker("history", "k26").stdout
    assert daemon.stoker("delete", "host", "gpu-a").stdout == "host/gpu-a forgotten; nothing was changed on it\n"
    assert daemon.stoker("delete", "host", "x", "--abandon").returncode == 2


def test_help_is_whole_where_a_terminal_is_narrow() -> None:
    asked: list[list[str]] = [[]]
    for words in asked:
        said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        commands = re.findall(r"^  ([a-z]+)  +\S", said.partition("\nCommands:\n")[2], re.MULTILINE)
        asked += [[*words, command] for command in commands]
        assert not [row for row in said.splitlines() if row.endswith("...") and "COMMAND" not in row], said
        assert not re.search(r"<(list|int|float|path)\b", said), said
    assert len(asked) == 23


def test_times_are_said_to_the_second_in_utc(daemon: Daemon) -> None:
    applied(daemon)
    assert re.search(
        r"^Created: +2026-01-02T03:04:05Z$", daemon.stoker("describe", "host", "gpu-a").stdout, re.MULTILINE
    )
    assert "since 2026-01-02T03:04:05Z; stoker resume" in daemon.stoker("pause").stdout
    assert "since 2026-01-02T03:04:05Z: nothing" in daemon.stoker("get").stdout
    assert daemon.stoker("events", "-e", "-n", "1").stdout.startswith("2026-01-02T03:04:05Z  ")


def test_pause_is_shown_until_resumed(daemon: Daemon) -> None:
    applied(daemon)
    assert daemon.stoker("pause").stdout.startswith("paused by ")
    assert daemon.stoker("get").stdout.startswith("PAUSED by ")
    assert daemon.stoker("resume").stdout == "resumed\n"
    assert "PAUSED" not in daemon.stoker("get").stdout


def test_doctor_fails_when_something_is_missing(daemon: Daemon) -> None:
    applied(daemon)
    daemon.hands.checks = [{"name": "road", "ok": True, "found": "SSH as root", "remedy": ""}]
    assert daemon.stoker("doctor", "gpu-a").returncode == 0
    daemon.hands.checks.append(
        {"name": "sudo", "ok": False, "found": "a password is required", "remedy": "see sudoers"}
    )
    done = daemon.stoker("doctor", "gpu-a")
    assert done.returncode == 1
    assert "see sudoers" in done.stdout


def test_takeover_says_from_whom(daemon: Daemon) -> None:
    applied(daemon)
    assert daemon.stoker("takeover", "gpu-a").stdout == "host/gpu-a taken over from store s-1, run r-1\n"


def test_exit_statuses(daemon: Daemon, tmp_path: Path) -> None:
    assert daemon.stoker("get").returncode == 0
    missing = daemon.stoker("get", "host", "nobody")
    assert (missing.returncode, missing.stderr) == (
        1,
        "stoker: Host nobody does not exist (stoker get shows what is declared)\n",
    )
    for usage in (["get", "pods"], ["nonsense"], ["apply"], ["get", "-o", "xml"], ["delete", "spec"]):
        assert daemon.stoker(*usage).returncode == 2, usage
    gone = daemon.stoker("get", STOKER_URL="http://127.0.0.1:1")
    assert gone.returncode == 3
    assert gone.stderr.count("\n") == 1
    assert "stoker serve" in gone.stderr
    for url in ("not a url", "ftp://x", "http://"):
        assert daemon.stoker("get", STOKER_URL=url).returncode == 3, url
    wrong = daemon.stoker("get", STOKER_TOKEN="wrong")
    assert wrong.returncode == 1
    assert "STOKER_TOKEN" in wrong.stderr
    nothing = daemon.stoker("get", STOKER_DATA=str(tmp_path / "empty"))
    assert nothing.returncode == 1
    assert "no token" in nothing.stderr


def test_token_file_must_be_private(daemon: Daemon, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text((daemon.data / "token").read_text())
    token.chmod(0o644)
    refused = daemon.stoker("get", STOKER_TOKEN_FILE=str(token))
    assert refused.returncode == 1
    assert "chmod 600" in refused.stderr
    token.chmod(0o600)
    assert daemon.stoker("get", STOKER_TOKEN_FILE=str(token)).returncode == 0


def test_version_names_the_daemon(daemon: Daemon) -> None:
    assert "daemon 0.1.0" in daemon.stoker("version").stdout
    alone = daemon.stoker("version", STOKER_URL="http://127.0.0.1:1")
    assert alone.returncode == 0
    assert "none answered" in alone.stdout


@pytest.mark.parametrize("script", ["stoker-host", "gate"])
def test_helper_print_gives_the_script(daemon: Daemon, script: str) -> None:
    assert daemon.stoker("helper", "print", script).stdout.startswith("#!/bin/sh")


def test_warnings_of_a_spec_are_shown_and_it_is_applied(daemon: Daemon) -> None:
    applied(daemon)
    done = daemon.stoker("apply", "-f", "-", stdin=SPEC + "  env: {HF_TOKEN: hf_x}\n")
    assert (done.returncode, done.stdout) == (0, "servingspec/k26 configured\n")
    assert done.stderr.startswith("stoker: warning: standard input: servingspec/k26: spec.env.HF_TOKEN: ")


def test_packages_are_ours_wherever_the_command_runs(tmp_path: Path) -> None:
    for name in ("daemon", "api"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('shadowed')")
    code = "import daemon, api; print(*daemon.__path__, *api.__path__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    root = Path(__file__).parents[2]
    assert done.stdout.split() == [str(root / "daemon"), str(root / "api")]
