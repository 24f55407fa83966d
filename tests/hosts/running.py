"""A real daemon process beside the test hosts: started, killed and asked over its API, as a person would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from harness import TestHost
from harness.host import BUSY

ROOT = Path(__file__).parents[2]
UP_S = 20.0


class Daemon:
    """One daemon on a data folder. `start` and `kill` may be repeated; the store stays."""

    def __init__(self, data: Path, ssh_key: Path) -> None:
        self.data, self.ssh_key = data, ssh_key
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = data.with_suffix(".log")

    def start(self) -> None:
        self.launch()
        self.wait(self._answers, "the daemon answers", UP_S)

    def launch(self) -> None:
        """Starts the process; does not wait for it to answer."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv(), env=self.env(), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def argv(self) -> list[str]:
        return [sys.executable, "-c", "from api.cli import main; main()", "serve"]

    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.data.parent), "PYTHONPATH": str(ROOT),
            "STOKER_DATA": str(self.data), "STOKER_PORT": str(self.port), "STOKER_SSH_IDENTITY": str(self.ssh_key),
            "STOKER_LOG_FORMAT": "json", "STOKER_CONNECT_TIMEOUT_S": "3", "STOKER_LOGIN_TIMEOUT_S": "5",
            "STOKER_LOOK_TIMEOUT_S": "10",
        }  # fmt: skip

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon exited {self.process.returncode}\n{self.log_tail()}")
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def log_tail(self) -> str:
        return self.log.read_bytes()[-6000:].decode(errors="replace") if self.log.exists() else ""

    @property
    def token(self) -> str:
        return (self.data / "token").read_text().strip()

    def call(self, method: str, path: str, body: Any = None, *, text: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        if text is not None:
            headers["Content-Type"] = "application/yaml"
            return httpx.request(method, url, content=text.encode(), headers=headers, timeout=30)
        return httpx.request(method, url, json=body, headers=headers, timeout=30)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        response = self.call(method, path, body)
        assert response.status_code < 300, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def put_host(self, name: str, host: TestHost, **more: Any) -> Any:
        spec = {
            "ssh": {"address": host.address, "user": "root", "hostKey": host.host_key_line},
            "mode": "enforce", "period": "2s", **more,
        }  # fmt: skip
        return self.ok("PUT", f"/api/v1/hosts/{name}", manifest("Host", name, spec))

    def put_spec(self, name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> Any:
        return self.ok("PUT", f"/api/v1/servingspecs/{name}", manifest("ServingSpec", name, spec, labels))

    def get_spec(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ok("GET", f"/api/v1/servingspecs/{name}")
        return found

    def get_host(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ok("GET", f"/api/v1/hosts/{name}")
        return found

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        found = self.get_spec(name) if kind == "spec" else self.get_host(name)
        conditions = (found.get("status") or {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {"status": "Absent", "reason": "", "message": ""})

    def instance(self, spec: str) -> dict[str, Any]:
        found = (self.get_spec(spec).get("status") or {}).get("instances", [])
        return found[0] if found else {}

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        query = f"?limit=500{f'&name={name}' if name else ''}"
        found = self.ok("GET", f"/api/v1/events{query}")
        items: list[dict[str, Any]] = found["items"] if isinstance(found, dict) else found
        return items

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample, 0 when it is absent."""
        text = self.call("GET", "/metrics").text
        for line in text.splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def ready(self, name: str, timeout_s: float = 40) -> dict[str, Any]:
        self.wait(lambda: self.condition("spec", name, "Ready")["status"] == "True", f"{name} Ready", timeout_s, name)
        return self.instance(name)

    def reason(self, name: str, reason: str, timeout_s: float = 30) -> dict[str, Any]:
        """Waits until the spec's Ready has that reason."""
        self.wait(
            lambda: self.condition("spec", name, "Ready")["reason"] == reason, f"{name} {reason}", timeout_s, name
        )
        return self.condition("spec", name, "Ready")

    def wait(self, met: Callable[[], bool], what: str, timeout_s: float, spec: str | None = None) -> None:
        deadline = time.monotonic() + BUSY * timeout_s
        while not met():
            if time.monotonic() > deadline:
                told = [what, "did not come"]
                if spec is not None:
                    told.append(json.dumps(self.get_spec(spec).get("status"), indent=1)[:4000])
                    told += [f"{e['reason']}: {e['message']} {e.get('evidence', '')[:300]}" for e in self.events()[:12]]
                raise AssertionError("\n".join([*told, self.log_tail()[-3000:]]))
            time.sleep(0.1)


def manifest(kind: str, name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "stoker/v1", "kind": kind, "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
    }  # fmt: skip


def sglang(host: str, gpus: list[int], port: int = 30001, **more: Any) -> dict[str, Any]:
    """A declaration of the stand-in SGLang."""
    return {
        "engine": {"name": "sglang", "python": "/opt/venv/bin/python"},
        "model": {"path": "/models/m", "servedName": "m"},
        "parallelism": {"tensor": len(gpus)},
        "placement": {"host": host, "gpus": gpus},
        "port": port,
        "readiness": {"period": "5s", "timeout": "10s"},
        "strays": {"grace": "2s"},
        "restart": {"delay": "1s"},
        **more,
    }


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
