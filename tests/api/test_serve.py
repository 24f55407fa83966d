"""The daemon as a process: it starts, keeps what it acknowledged, refuses a second one, and stops cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.api_stage import host

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `stoker serve` on a free port; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(data: str = "data", **environ: str) -> subprocess.Popen[str]:
        settings = {"STOKER_DATA": str(tmp_path / data), "STOKER_PORT": "0", "STOKER_LOG_FORMAT": "json"}
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | settings | environ
        command = [sys.executable, "-P", "-c", "from api.cli import main; main()", "serve"]
        # A folder that shadows our packages, as in a checkout of something else.
        (tmp_path / "daemon").mkdir(exist_ok=True)
        (tmp_path / "daemon" / "__init__.py").write_text("raise SystemExit('shadowed')")
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def listening(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the daemon said when it began to listen."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (said := json.loads(line)).get("event") == "listening":
            return dict(said)
    raise AssertionError(f"the daemon ended with {process.wait(30)} and never listened")


def client(said: dict[str, Any]) -> httpx.Client:
    token = Path(said["token"]).read_text().strip()
    return httpx.Client(base_url=said["url"], headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30)


def test_serves_on_loopback_and_stops_cleanly(start: Start, tmp_path: Path) -> None:
    process = start()
    said = listening(process)
    assert said["url"].startswith("http://127.0.0.1:")
    assert (tmp_path / "data" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    with client(said) as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/metrics").status_code == 200
        assert http.get("/api/v1/hosts").json()["items"] == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_what_was_acknowledged_survives_kill_9(start: Start) -> None:
    process = start()
    with client(listening(process)) as http:
        assert http.put("/api/v1/hosts/gpu-a", json=host(ssh={"address": "127.0.0.1", "port": 1})).status_code == 201
        token = http.headers["Authorization"]
    process.kill()
    process.wait(30)
    with client(listening(start())) as http:
        assert http.headers["Authorization"] == token
        assert http.get("/api/v1/hosts/gpu-a").json()["spec"]["gpus"] == {"count": 8}


def test_second_daemon_on_the_store_is_refused(start: Start) -> None:
    listening(start())
    second = start()
    assert second.wait(60) == 1
    assert second.stderr is not None
    assert "another daemon" in second.stderr.read()


def test_taken_port_is_one_line(start: Start) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        process = start(STOKER_PORT=str(other.getsockname()[1]))
        assert process.wait(60) == 1
    assert process.stderr is not None
    last = process.stderr.read().splitlines()[-1]
    assert last.startswith("stoker: cannot listen on 127.0.0.1 port")
    assert "STOKER_PORT" in last


def test_token_that_others_can_read_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "token").write_text("x" * 40)
    (tmp_path / "data" / "token").chmod(0o644)
    process = start()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert "chmod 600" in process.stderr.read()


def test_wrong_setting_is_named(start: Start) -> None:
    process = start(STOKER_WORKERS="many")
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert "STOKER_WORKERS" in process.stderr.read()


def test_names_in_the_address_reach_no_file(start: Start) -> None:
    with client(listening(start())) as http:
        for path in (
            "/api/v1/hosts/..%2f..%2fetc",
            "/api/v1/hosts/%00",
            "/api/v1/hosts/" + "x" * 60_000,
            "/api/v1/../../x",
        ):
            assert http.get(path).status_code in (400, 404), path
        assert http.get("/livez").status_code == 200
