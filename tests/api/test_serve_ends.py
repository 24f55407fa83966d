"""The daemon as a process ends when it is told to, whatever waits for whom: each was once a daemon that did not."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.api.api_stage import host
from tests.api.test_serve import Start, client, listening, start

__all__ = ["start"]  # a fixture
SOON_S = 8.0
PATIENCE_S = 30.0


def ended_after(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> float:
    """How long it took, from the signal."""
    began = time.monotonic()
    process.send_signal(number)
    process.wait(2 * PATIENCE_S)
    return time.monotonic() - began


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that takes connections and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener


def test_with_a_thread_that_hangs_on_a_file(start: Start, tmp_path: Path) -> None:
    """Here known_hosts, as on a dead network file system; a name server that does not answer is the same."""
    os.mkfifo(tmp_path / "known_hosts")
    process = start(STOKER_SSH_KNOWN_HOSTS=str(tmp_path / "known_hosts"))
    with client(listening(process)) as http:
        assert http.put("/api/v1/hosts/gpu-a", json=host(ssh={"address": "127.0.0.1", "port": 1})).status_code == 201
        writer = os.open(tmp_path / "known_hosts", os.O_WRONLY)  # until somebody has it open
    assert ended_after(process) < SOON_S
    assert process.returncode == 0
    os.close(writer)


def asked(http: httpx.Client, path: str, silent: socket.socket) -> socket.socket:
    """A request under way, which the daemon answers once its host did; gives the host's side of the connection."""

    def ask() -> None:
        with pytest.raises(httpx.TransportError):
            http.post(path)

    threading.Thread(target=ask, daemon=True).start()
    silent.settimeout(PATIENCE_S)
    return silent.accept()[0]


def test_a_second_signal_ends_it_while_a_request_waits_for_its_host(start: Start, silent: socket.socket) -> None:
    process = start(STOKER_LOGIN_TIMEOUT_S="60", STOKER_LOOK_TIMEOUT_S="60")
    with client(listening(process)) as http:
        ssh = {"address": "127.0.0.1", "port": silent.getsockname()[1]}
        assert http.put("/api/v1/hosts/gpu-a", json=host(ssh=ssh)).status_code == 201
        with asked(http, "/api/v1/hosts/gpu-a/doctor", silent):
            process.send_signal(signal.SIGTERM)
            told(process, "stopping")
            assert ended_after(process) < 3
    assert process.returncode == 130


def test_a_start_that_hangs_is_given_up_and_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    with (tmp_path / "data" / "stoker.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start()
        until_it_waits_for_a_lock(process.pid)
        assert ended_after(process) < PATIENCE_S
    assert process.returncode == 1
    assert process.stderr is not None
    assert "_locked" in process.stderr.read()


def until_it_waits_for_a_lock(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while not any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
        assert time.monotonic() < end
        time.sleep(0.05)


def told(process: subprocess.Popen[str], event: str) -> None:
    assert process.stderr is not None
    assert any(f'"{event}"' in line for line in process.stderr)
