"""`stoker demo` as a person runs it: in a pipe, ended by Ctrl-C or by time, its daemon killed, itself killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


class Demo:
    """A running demo in a folder of its own; `lines` are read by `wait`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder, self.lines = process, folder, list[str]()

    def wait(self, seen: Callable[[str], bool]) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if seen(line):
                return line
        raise AssertionError("".join(self.lines))

    def end(self) -> int:
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        self.lines.append(out)
        return self.process.returncode

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def daemon(self) -> int:
        """The pid of the daemon, told by its settings."""
        (pid,) = _processes(self.folder)
        return pid


def _processes(folder: Path) -> list[int]:
    """Daemons whose data lie below the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
                argv = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"STOKER_DATA={folder}".encode() in environ and b"api.serve" in argv:
                found.append(int(entry.name))
    return found


def _until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def demo(folder: Path, *words: str) -> Iterator[Demo]:
    environ = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "STOKER_DATA": "/nonexistent"}
    argv = [sys.executable, "-c", "from api.cli import main; main()", "demo", *words]
    process = subprocess.Popen(argv, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Demo(process, folder)
    finally:
        process.kill()
        process.communicate()


def _port(said: str) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
    assert found
    return int(found[1])


def _refused(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.fleet
def test_a_crash_is_shown_found_and_healed_with_times_of_the_daemons_own_events(tmp_path: Path) -> None:
    with demo(tmp_path, "--faults", "crash", "--hosts", "1") as one:
        ask = one.wait(lambda line: "export STOKER_URL" in line)
        ask += one.wait(lambda line: "export STOKER_TOKEN_FILE" in line)
        one.wait(lambda line: line.startswith("fault 1, crash on gpu-1"))
        one.wait(lambda line: line.startswith("  = "))
        url, token = _asked(ask)
        headers = {"Authorization": f"Bearer {Path(token).read_text().strip()}"}
        told = httpx.get(f"{url}/api/v1/events?limit=100", headers=headers).json()["items"]
        one.process.send_signal(signal.SIGINT)
        assert one.end() == 0
    assert any(event["reason"] == "EngineCrashed" and "illegal memory access" in event["evidence"] for event in told)
    steps = re.findall(r"^  ([ >!=])\s+([\d.]+) s  (\w+)", one.said, re.MULTILINE)
    times = [float(at) for _, at, _ in steps]
    assert times == sorted(times)
    # The same differences between the daemon's stamps as were shown, but for the fault's own instant.
    crash = next(e for e in told if e["reason"] == "EngineCrashed")
    generated = max((e for e in told if e["reason"] == "Generated"), key=lambda e: e["lastTimestamp"])
    shown = {word: float(at) for _, at, word in steps}
    stamped = _seconds(generated["lastTimestamp"]) - _seconds(crash["lastTimestamp"])
    assert re.search(rf"1 +crash +gpu-1 deepseek +{shown['EngineCrashed']:g}0* s by EngineCrashed +[\d.]+ s", one.said)
    assert abs((times[-1] - shown["EngineCrashed"]) - stamped) < 0.2
    assert "\x1b" not in one.said
    _nothing_is_left(one, _port(ask))


def _asked(said: str) -> tuple[str, str]:
    """The daemon's address and its token's file, out of lines that can be pasted."""
    found = re.findall(r"^ *export STOKER_(?:URL|TOKEN_FILE)=(\S+)$", said, re.MULTILINE)
    assert len(found) == 2, said
    return found[0], found[1]


@pytest.mark.fleet
def test_the_manifests_that_it_wrote_can_be_applied_to_its_daemon_and_doctor_is_content(tmp_path: Path) -> None:
    with demo(tmp_path, "--faults", "none", "--hosts", "1") as one:
        one.wait(lambda line: "manifests as they were applied: " in line)
        one.wait(lambda line: "specs generate" in line)
        url, token = _asked(one.said)
        files = one.said.partition("manifests as they were applied: ")[2].split("\n")[0]
        again = _stoker(url, token, "apply", "-f", files)
        doctor = _stoker(url, token, "doctor", "gpu-1")
        one.process.send_signal(signal.SIGINT)
        assert one.end() == 0
    assert re.findall(r"(unchanged|configured|created)", again) == ["unchanged"] * 2, again
    assert re.search(r"^ok +clock ", doctor, re.MULTILINE), doctor
    assert list(tmp_path.iterdir()) == []


def _stoker(url: str, token: str, *words: str) -> str:
    environ = {**os.environ, "STOKER_URL": url, "STOKER_TOKEN_FILE": token}
    argv = [sys.executable, "-c", "from api.cli import main; main()", *words]
    done = subprocess.run(argv, cwd=ROOT, env=environ, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def _nothing_is_left(one: Demo, port: int) -> None:
    assert _processes(one.folder) == []
    assert list(one.folder.iterdir()) == []
    assert _refused(port)


def test_a_quiet_demo_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--faults", "none", "--hosts", "1", "--for", "8") as one:
        said = one.wait(lambda line: "export STOKER_URL" in line)
        assert _processes(tmp_path) == [one.daemon()]
        assert one.end() == 0
    assert "no fault was shown" in one.said
    _nothing_is_left(one, _port(said))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_while_it_starts_it_leaves_nothing(tmp_path: Path, number: int) -> None:
    with demo(tmp_path, "--hosts", "2") as one:
        one.wait(lambda line: "starting" in line)
        _until(lambda: bool(_processes(tmp_path)))
        one.process.send_signal(number)
        assert one.end() == 0
    assert _processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_it_is_imported_ends_it_quietly(tmp_path: Path) -> None:
    with demo(tmp_path, "--hosts", "1") as one:
        _until(lambda: "pydantic_core" in Path(f"/proc/{one.process.pid}/maps").read_text())
        one.process.send_signal(signal.SIGINT)
        assert one.end() in (-signal.SIGINT, 130)
    assert one.said == ""


def test_a_demo_that_is_killed_takes_its_daemon_along(tmp_path: Path) -> None:
    with demo(tmp_path, "--hosts", "1") as one:
        one.wait(lambda line: "export STOKER_URL" in line)
        assert one.daemon()
        one.process.kill()
        _until(lambda: not _processes(tmp_path))


def test_a_daemon_that_dies_is_told_and_ends_the_demo(tmp_path: Path) -> None:
    with demo(tmp_path, "--hosts", "1") as one:
        one.wait(lambda line: "export STOKER_URL" in line)
        os.kill(one.daemon(), signal.SIGKILL)
        assert one.end() == 1
    assert "daemon" in one.said.splitlines()[-1]
    assert "Traceback" not in one.said
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_asked_for_is_wrong_usage(tmp_path: Path) -> None:
    for words in (("--faults", "nonsense"), ("--hosts", "0"), ("--for", "0")):
        with demo(tmp_path, *words) as one:
            assert one.end() == 2, one.said
    with demo(tmp_path, "--manifests", str(tmp_path / "none")) as one:
        assert one.end() == 1
        assert "make demo" in one.said
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, demo(tmp_path, "--port", str(taken.getsockname()[1])) as one:
        assert one.end() == 1
        assert "STOKER_PORT" in one.said
    assert list(tmp_path.iterdir()) == []
