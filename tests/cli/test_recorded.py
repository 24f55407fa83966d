"""record, replay, classify and check as a person runs them: in a pipe, without root, without network."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from api.cli.recording_files import declared_in, read_recording
from daemon.domain.errors import AdmissionError
from daemon.recording.form import ProcessForm
from daemon.recording.simple import Hand
from tests.api.api_stage import host
from tests.cli.cli_stage import Daemon, stoker

pytestmark = pytest.mark.strays
GOLDEN = Path(__file__).parents[1] / "golden" / "recordings"
SPECS = Path(__file__).parents[2] / "manifests" / "specs"
EMPTY = {"PATH": "/nonexistent", "HOME": "/nonexistent"}


def run(*args: str, stdin: str = "") -> Any:
    """With nothing in the environment: no daemon, no token, no tool."""
    return stoker(*args, env=EMPTY, stdin=stdin)


def said(*args: str, stdin: str = "") -> dict[str, Any]:
    done = run(*args, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_example_is_understood_whole_and_signals_only_what_was_seen_twice() -> None:
    example = run("record", "--example").stdout
    once, twice = said("replay", "-", stdin=example), said("replay", "-", "--looks", "2", stdin=example)
    assert list(twice) == list(once)
    assert once["plan"] == []
    assert [(one["action"], one["pids"]) for one in twice["plan"]] == [("signal-term", [22240])]
    assert [(one["pid"], one["class"], one["reason"]) for one in once["ownership"]] == [
        (1, "foreign", None),
        (22240, "orphan-proven", "NotObservedYet"),
    ]
    assert once["notes"] == []


def test_a_recording_of_cards_alone_says_of_all_else_that_it_is_not_recorded() -> None:
    text = "recording: stoker/v1\nsections:\n  gpus: |\n    index, uuid, memory.used [MiB]\n    0, GPU-1, 5 MiB\n"
    look = said("replay", "-", stdin=text)
    assert look["observation"]["gpus"][0]["memoryUsedMib"] == 5
    for part in ("apps", "processes", "listeners", "units", "otherUnits", "sessions", "fence", "hold"):
        assert look["observation"][part]["unknown"] == "NotRecorded", part
    assert look["ownership"] == {"unknown": "NotRecorded", "detail": "section processes is missing"}
    assert look["observation"]["units"]["detail"] == "section units is missing"
    assert look["plan"] == []


def test_text_written_by_hand_may_lack_its_last_lines_end_and_a_tools_own_may_not() -> None:
    row = "0, GPU-1, 00000000:00:06.0, NVIDIA H200, 580.159.04, 143771, 5, 0, 35, Disabled"
    document: dict[str, Any] = {"recording": "stoker/v1", "sections": {"gpus": row, "apps": "GPU-1, 5, x, 818"}}
    look = said("replay", "-", stdin=json.dumps(document))["observation"]
    assert (look["gpus"][0]["memoryUsedMib"], look["apps"][0]["pid"]) == (5, 5)
    look = said("replay", "-", stdin=json.dumps(document | {"helper": 3}))["observation"]
    assert "unknown" in look["gpus"]
    assert "unknown" in look["apps"]


def test_processes_whose_units_were_not_recorded_are_nobodys_for_sure() -> None:
    text = (GOLDEN / "b14-never-by-interpreter.yaml").read_text()
    start, end = text.index("  units:"), text.index("  sessions:")
    look = said("replay", "-", "--looks", "2", stdin=text[:start] + text[end:])
    assert {one["class"] for one in look["ownership"]} == {"unknown"}
    assert all(one["proof"].startswith("NotRecorded: ") for one in look["ownership"])
    assert [one["action"] for one in look["plan"]] == []


def test_manifests_come_from_the_command_line_too_and_outrank_those_in_the_file(tmp_path: Path) -> None:
    whole = (GOLDEN / "b05-comm-cut-at-fifteen-characters.yaml").read_text()
    recording, host, spec = whole.split("---\n")
    (tmp_path / "one.yaml").write_text(recording)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "host.yaml").write_text(host)
    (tmp_path / "more" / "spec.yaml").write_text(spec)
    apart = said("replay", str(tmp_path / "one.yaml"), "-f", str(tmp_path / "more"), "--looks", "2")
    assert apart == said("replay", "-", "--looks", "2", stdin=whole)
    (tmp_path / "more" / "host.yaml").write_text(host.replace("exclusive: true", "exclusive: false"))
    other = said("replay", "-", "-f", str(tmp_path / "more" / "host.yaml"), "--looks", "2", stdin=whole)
    assert [one["reason"] for one in other["ownership"] if one["pid"] == 396079] == ["ReportOnly"]


def test_an_exit_status_and_an_end_mark_that_never_came_count_before_the_text() -> None:
    text = (GOLDEN / "b17-memory-is-back.yaml").read_text()
    gpus = text[text.index("  gpus: |") : text.index("  apps:")]
    failed = gpus.replace("gpus: |", "gpus:\n    exitStatus: 9\n    output: |").replace("\n    0,", "\n      0,")
    look = said("replay", "-", stdin=text.replace(gpus, failed))
    assert look["observation"]["gpus"]["unknown"] == "DriverNotLoaded"
    cut = failed.replace("exitStatus: 9", "complete: false")
    look = said("replay", "-", stdin=text.replace(gpus, cut))
    assert look["observation"]["gpus"]["unknown"] == "Truncated"
    assert look["plan"] == []
    look = said("replay", "-", stdin=text.replace("host: gpu-a\n", "host: gpu-a\ncomplete: false\n", 1))
    assert look["observation"]["unknown"] == "LookIncomplete"
    assert look["plan"] == []


WRONG = {
    "": "0 recordings in it",
    "{": "not JSON",
    "[]": "0 recordings in it",
    "recording: stoker/v2": "recording: must be 'stoker/v1'",
    "recording: stoker/v1\nsections: []": "sections: must be an object",
    "recording: stoker/v1\nsections: {gpus: 3}": "sections.gpus: must be text or an object with output",
    "recording: stoker/v1\nsections: {gpus: {output: a, base64: b}}": "sections.gpus: give output or base64, not both",
    "recording: stoker/v1\nsections: {gpus: {base64: '@@'}}": "sections.gpus.base64: is not base64",
    "recording: stoker/v1\nsections: {gpus: {exit_code: 3, output: x}}": "exit_code: unknown key (keys are camelCase)",
    "recording: stoker/v1\nsections: {processes: [{pid: 3}]}": "sections.processes[0]: user or uid is needed",
    "recording: stoker/v1\nsections: {processes: [{pid: 3, user: root}]}": "give exactly one of ageS",
    "recording: stoker/v1\nsections: {processes: [{pid: x, user: root, ageS: 1}]}": "processes[0].pid: must be",
    "recording: stoker/v1\nsections: {processes: [{pid: 3, user: root, ageS: 1, cgrup: /}]}": "cgrup: unknown key",
    "recording: stoker/v1\nsections: {units: [{name: a b}]}": "sections.units[0].name: has characters",
    "recording: stoker/v1\nsections: {sockets: [{port: 99999}]}": "sections.sockets[0].port: must be",
    "recording: stoker/v1\nsections: {sockets: [{port: 9, address: here}]}": "sections.sockets[0].address: ",
    "recording: stoker/v1\nknows: {manifests: [{kind: Pod}]}": "knows: kind: must be Host or ServingSpec",
    "recording: stoker/v1\n---\nkind: ServingSpec\nmetadata: {name: x}\nspec: {engine: {name: y}}": "spec.engine.name",
    "recording: stoker/v1\n---\nrecording: stoker/v1": "2 recordings in it",
    "recording: !x stoker/v1": "tag",
    '{"recording": "stoker/v1", "recording": "stoker/v1"}': "key given twice",
    "a: &a [*a]": "alias",
    "\x00": "not YAML",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_no_recording_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(AdmissionError) as refused:
        declared_in(read_recording(str(file), [])[1])
    told = [str(problem) for problem in refused.value.problems]
    assert WRONG[text] in "; ".join(told)
    assert all(one.startswith(str(file)) for one in told)


@pytest.mark.parametrize("pid", ["²", "-5", " 5", "x", "9" * 5000])
def test_an_answer_for_what_is_no_pid_says_nothing(pid: str) -> None:
    recording = {"recording": "stoker/v1", "knows": {"serves": {pid: True, "5": True}}, "sections": {}}
    assert said("replay", "-", stdin=json.dumps(recording))["replay"] == "stoker/v1"


def test_a_command_line_of_a_million_characters_is_split_at_once() -> None:
    began = time.monotonic()
    words = ProcessForm.model_validate({"pid": 5, "user": "root", "ageS": 1, "command": "x" * 1_000_000 + " y"})
    assert len(Hand(None, [words], None, None, None, frozenset(), {}).sections()["processes"]) > 1_000_000
    assert time.monotonic() - began < 5


def test_what_is_wrong_with_a_file_is_one_line_each_and_status_1() -> None:
    text = "recording: stoker/v1\nsections: {gpus: 3, processes: [{pid: x, user: root, ageS: 1}]}"
    done = run("replay", "-", stdin=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "stoker: standard input: sections.processes[0].pid: must be a whole number",
        "stoker: standard input: sections.gpus: must be text or an object with output",
    ]


def test_wrong_usage_is_status_2() -> None:
    assert run("replay").returncode == 2
    assert run("replay", "-", "--looks", "3").returncode == 2
    assert run("classify").returncode == 2
    assert run("classify", "--engine", "ollama").returncode == 2
    assert run("check").returncode == 2
    assert run("record").returncode == 2
    assert run("replay", "/nonexistent/x").returncode == 1


def test_replay_prints_yaml_that_says_the_same() -> None:
    from api.manifest import read_yaml

    text = run("record", "--example").stdout
    as_yaml = run("replay", "-", "-o", "yaml", stdin=text).stdout.encode()
    assert read_yaml(as_yaml)[0]["ownership"][1]["class"] == said("replay", "-", stdin=text)["ownership"][1]["class"]


@pytest.mark.parametrize("columns", [80, 140])
def test_as_text_it_fits_and_says_whose_each_process_is_and_what_is_done(columns: int) -> None:
    file = str(GOLDEN / "h200x2-one-stopped.yaml")
    done = stoker("replay", file, "--looks", "2", "-o", "text", env=EMPTY | {"COLUMNS": str(columns)})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0] == "host gpu-a, seen twice, 1 s apart, store s-1"
    assert any(line.split()[:4] == ["629", "orphan-likely", "TERM", "CONT"] for line in lines)
    assert {"  signal-term 628 629", "  signal-cont 629"} <= set(lines)


def test_as_text_each_drift_names_its_unit() -> None:
    example = run("record", "--example").stdout
    rows = [line.split() for line in run("replay", "-", "-o", "text", stdin=example).stdout.splitlines()]
    assert ["stoker-llama.server.service", "running", "active", "active", "inactive"] in rows


def test_the_schema_names_every_key_of_the_example() -> None:
    schema = said("record", "--schema")
    assert schema["properties"]["recording"]["const"] == "stoker/v1"
    assert {"ageS", "cgroup", "env", "nvidia", "serves"} <= set(schema["$defs"]["ProcessForm"]["properties"])


def test_record_asks_the_daemon_and_writes_a_file_for_its_owner_alone(daemon: Daemon, tmp_path: Path) -> None:
    daemon.stoker("apply", "-f", "-", stdin=json.dumps(host("gpu-a")))
    daemon.hands.recording = {"recording": "stoker/v1", "sections": {"gpus": {"output": "x"}}, "redacted": 2}
    file = tmp_path / "look.json"
    file.write_text("an earlier one")
    file.chmod(0o644)
    done = daemon.stoker("record", "gpu-a", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert "1 sections of gpu-a, 2 secrets taken out" in done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["host"] == "gpu-a"
    assert json.loads(daemon.stoker("record", "gpu-a").stdout) == json.loads(file.read_text())
    assert daemon.stoker("record", "gpu-z").returncode == 1
    assert daemon.stoker("record", "gpu-a", "-o", "/nonexistent/x").returncode == 1
    assert daemon.stoker("record", "gpu-a", STOKER_URL="http://127.0.0.1:1").returncode == 3


LOGS = {
    "sglang": {
        "misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ewjreo (size 33030528)"
        ", error: No space left on device (28)": "SharedMemoryFull",
        "error: unrecognized arguments: --tp_size 4": "InvalidLaunchArgs",
        "": "Unclassified",
        "INFO all is well": "Unclassified",
    },
    "vllm": {
        "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory "
        "utilization (0.85, 103.38 GiB).": "MemoryHeldByOthers",
    },
}


@pytest.mark.parametrize(("engine", "line"), [(engine, line) for engine, lines in LOGS.items() for line in lines])
def test_a_log_is_classified(engine: str, line: str) -> None:
    found = said("classify", "--engine", engine, stdin=line + "\n")
    assert found["class"] == LOGS[engine][line]
    assert list(found) == ["engine", "class", "kind", "retryable", "hint", "evidence", "progress"]
    assert found["progress"] is None
    assert not line or line in found["evidence"]


def test_the_engine_decides_whose_flags_are_suggested() -> None:
    line = "error: unrecognized arguments: --max-model-leng 4096\n"
    assert said("classify", "-e", "vllm", stdin=line)["hint"] == "did you mean --max-model-len?"
    assert "did you mean" not in said("classify", "-e", "sglang", stdin=line)["hint"]


def test_check_shows_command_line_and_unit_of_each_role_and_finds_nothing_wrong() -> None:
    done = run("check", "-f", str(SPECS))
    assert done.returncode == 0, done.stderr + done.stdout
    for part in ("stoker-chat-pd.prefill.service on gpu-b, role prefill", "--tp-size 4", "ExecStart=:/opt/venv"):
        assert part in done.stdout
    at = done.stdout.splitlines().index("    /opt/venv/bin/python -m sglang.launch_server \\")
    assert done.stdout.splitlines()[at + 1] == "      --model-path /models/DeepSeek-V3-AWQ \\"
    assert "\\x0a" not in done.stdout
    found = said("check", "-f", str(SPECS), "-o", "json")
    one = next(one for one in found["objects"] if one["name"] == "chat-pd")
    assert [instance["role"] for instance in one["instances"]] == ["prefill", "decode", "router"]
    assert one["instances"][0]["argv"][:3] == ["/opt/venv/bin/python", "-m", "sglang.launch_server"]


def test_check_says_what_would_be_refused_with_its_place_and_ends_with_1() -> None:
    spec = (
        "apiVersion: stoker/v1\nkind: ServingSpec\nmetadata: {name: m}\nspec:\n"
        "  engine: {name: vllm, python: /opt/venv/bin/python}\n  model: {path: /m}\n"
        "  parallelism: {tensor: 4}\n  placement: {host: a, gpus: [0, 1]}\n  port: 30000\n"
    )
    done = run("check", "-f", "-", stdin=spec)
    assert done.returncode == 1
    assert "problem: spec.parallelism: tensor 4" in done.stdout
    assert "Traceback" not in done.stderr
    done = run("check", "-f", "-", stdin=spec + "  color: red\n")
    assert (done.returncode, "spec.color: unknown key" in done.stdout) == (1, True)
    assert run("check", "-f", "-", stdin="").returncode == 1
