"""Engines that fail, on real hosts: never Ready, the cause told, and no restart by Stoker; vLLM's own tree."""

from __future__ import annotations

from typing import Any

import pytest
from harness import TestHost
from harness.host import GpuHolder

from tests.hosts.edges import actions, argv_of, never_ready, show
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]


def generated(daemon: Daemon) -> bool:
    """Whether it was ever called Ready, also between two looks of a watcher."""
    return any(event["reason"] == "Generated" for event in daemon.events("m"))


VLLM = {"name": "vllm", "python": "/opt/venv/bin/python"}
CRASHES = {
    "first": {"env": {"STANDIN_CRASH_FIRST": "1"}},
    "second-block": {"env": {"STANDIN_CRASH_ABOVE": "8"}},
    "vllm": {"env": {"STANDIN_CRASH_FIRST": "1"}, "engine": VLLM},
}


@pytest.mark.parametrize("fault", CRASHES.values(), ids=CRASHES.keys())
def test_an_engine_that_crashes_when_it_generates_is_never_ready(
    daemon: Daemon, host: TestHost, fault: dict[str, Any]
) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], **fault))
    daemon.wait(lambda: any("draft_attn_backend" in e["evidence"] for e in daemon.events("m")), "the crash", 20, "m")
    reasons = never_ready(daemon, 8)
    assert reasons & {"UnitRestarting", "ConnectionRefused", "ProbePending", "WaitingInGate"}, reasons
    told = next(e for e in daemon.events("m") if "draft_attn_backend" in e["evidence"])
    assert (told["reason"], told["severity"]) == ("EngineCrashed", "Warning")
    assert not generated(daemon)
    assert "unit-restart" not in actions(daemon)


def test_an_engine_that_hangs_with_health_fine_is_never_ready_and_not_restarted(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    hangs = sglang("a", [0, 1], env={"STANDIN_HANG": "1"}, readiness={"period": "2s", "timeout": "2s"})
    daemon.put_spec("m", hangs)
    daemon.reason("m", "GenerationTimeout", 20)
    first = show(host, "InvocationID")
    assert never_ready(daemon, 8) == {"GenerationTimeout"}
    assert host.sh("curl -s -o /dev/null -w '%{http_code}' 127.0.0.1:30001/health").stdout == "200"
    assert show(host, "InvocationID") == first
    assert not generated(daemon)
    assert actions(daemon) == ["unit-start", "unit-enable", "put-unit"]


def test_an_engine_that_dies_while_loading_is_never_ready_and_the_cause_is_told(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    daemon.put_spec("m", sglang("a", [0, 1], env={"STANDIN_LOAD_FAIL": text}))
    daemon.wait(lambda: any(e["reason"] == "OutOfGPUMemory" for e in daemon.events("m")), "the cause", 20, "m")
    told = next(e for e in daemon.events("m") if e["reason"] == "OutOfGPUMemory")
    assert text in told["evidence"]
    never_ready(daemon, 3)
    assert not generated(daemon)
    assert "unit-restart" not in actions(daemon)


def test_an_engine_that_loads_silently_is_ready_only_when_it_has_loaded(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], env={"STANDIN_LOAD_SILENT": "1", "STANDIN_LOAD_S": "8"}))
    daemon.reason("m", "ConnectionRefused", 20)
    assert never_ready(daemon, 3) <= {"ConnectionRefused", "ProbePending"}
    daemon.ready("m", 20)
    assert actions(daemon) == ["unit-start", "unit-enable", "put-unit"]


def test_vllm_runs_and_after_a_kill_of_its_launcher_systemd_clears_its_cgroup(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], engine=VLLM))
    before = daemon.ready("m")
    assert argv_of(host, before["main_pid"])[:4] == ["/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", "/models/m"]
    workers = {holder.pid for holder in _holders(host, "VLLM::")}
    assert workers
    host.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new invocation", 20, "m")
    daemon.ready("m")
    assert not workers & {holder.pid for holder in host.gpu_holders()}
    assert {a for a in actions(daemon) + actions(daemon, "a")} == {"put-unit", "unit-enable", "unit-start"}


def _holders(host: TestHost, title: str) -> list[GpuHolder]:
    return [holder for holder in host.gpu_holders() if holder.name.startswith(title)]
