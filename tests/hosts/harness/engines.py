"""Stand-in engines started without the daemon, and asked directly: for scenes that a test begins with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.host import TestHost

PYTHON = "/opt/venv/bin/python"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answered; status 0 when nothing came (refused, cut or late)."""

    status: int
    body: dict[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.body.get("usage", {}).get("completion_tokens", 0))


def sglang_argv(port: int, *, ranks: int = 1, model: str = "/models/m", more: Sequence[str] = ()) -> list[str]:
    argv = [PYTHON, "-m", "sglang.launch_server", "--model-path", model, "--host", "0.0.0.0", "--port", str(port)]
    return [*argv, "--tp-size", str(ranks), *more]


def vllm_argv(port: int, *, ranks: int = 1, model: str = "/models/m", more: Sequence[str] = ()) -> list[str]:
    argv = [PYTHON, "/opt/venv/bin/vllm", "serve", model, "--port", str(port)]
    return [*argv, "--tensor-parallel-size", str(ranks), *more]


def run_unit(host: TestHost, unit: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Starts argv as a transient service as the daemon's units are (mixed kill, readable environment)."""
    options = [f"--setenv={name}={value}" for name, value in {"SPT_NOENV": "1", **(env or {})}.items()]
    host.sh(shlex.join(["systemd-run", "--quiet", f"--unit={unit}", "--property=KillMode=mixed", *options, *argv]))


def wait_healthy(host: TestHost, port: int, *, timeout_s: float = 20) -> None:
    """Waits for HTTP 200 of /health. Raises HostError."""
    host.wait_until(f"curl -sf -m 2 http://127.0.0.1:{port}/health", timeout_s=timeout_s)


def ask(host: TestHost, port: int, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5) -> Answer:
    """One request from inside the host."""
    data = json.dumps(body).encode() if body is not None else b""
    method = "-X POST --data-binary @-" if body is not None else ""
    url = f"http://127.0.0.1:{port}{path}"
    done = host.sh(f"curl -s -m {timeout_s} -w '\\n%{{http_code}}' {method} {url}", stdin=data, check=False)
    text, _, status = done.stdout.rpartition("\n")
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    return Answer(int(status) if done.returncode == 0 else 0, found if isinstance(found, dict) else {})


def generate(host: TestHost, port: int, *, tokens: int = 8, model: str = "/models/m", timeout_s: float = 5) -> Answer:
    """One completion."""
    body = {"model": model, "prompt": "hello", "max_tokens": tokens}
    return ask(host, port, "/v1/completions", body, timeout_s=timeout_s)
