"""The stand-in engines: trees, titles, endpoints, ends, and that each fault switch does what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest
from harness import TestHost, bystanders
from harness.engines import ask, generate, run_unit, sglang_argv, vllm_argv, wait_healthy
from harness.host import GpuHolder

pytestmark = pytest.mark.hosts
PORT = 30001
Argv = Callable[..., list[str]]
BOTH = pytest.mark.parametrize("argv", [sglang_argv, vllm_argv], ids=["sglang", "vllm"])


def start(
    host: TestHost, argv: Argv, env: Mapping[str, str] | None = None, *, ranks: int = 1, healthy: bool = True
) -> int:
    """Starts an engine as engine-1.service; returns its main pid."""
    run_unit(host, "engine-1", argv(PORT, ranks=ranks), env)
    if healthy:
        wait_healthy(host, PORT)
    return int(show(host, "MainPID"))


def show(host: TestHost, name: str) -> str:
    return host.sh(f"systemctl show engine-1 --value -p {name}").stdout.strip()


def titles(host: TestHost) -> list[str]:
    text = host.sh(
        "cat $(systemctl show engine-1 --value -p ControlGroup | sed 's#^#/sys/fs/cgroup#')/cgroup.procs"
    ).stdout
    lines = [host.sh(f"tr '\\0' ' ' < /proc/{pid}/cmdline").stdout.strip() for pid in text.split()]
    return sorted(lines)


def over(host: TestHost, timeout_s: float = 10) -> tuple[str, str]:
    """Waits for the unit's end; says how."""
    host.wait_until("systemctl show engine-1 --value -p SubState | grep -Eqx 'dead|failed|exited'", timeout_s=timeout_s)
    lines = host.journal("engine-1").splitlines()
    end = [line for line in lines if "Main process exited" in line]
    return (end[-1].partition("code=")[2] if end else "clean"), "\n".join(lines)


def test_sglang_has_the_tree_of_sglang_and_holds_memory(host: TestHost) -> None:
    main = start(host, sglang_argv, {"CUDA_VISIBLE_DEVICES": "1,0"}, ranks=2)
    assert titles(host) == [
        " ".join(sglang_argv(PORT, ranks=2)), "sglang::detokenizer", "sglang::scheduler_TP0", "sglang::scheduler_TP1"
    ]  # fmt: skip
    rows = {(row.gpu, row.name, row.mib) for row in host.gpu_holders()}
    assert rows == {
        (0, "sglang::scheduler_TP1", 20480), (1, "sglang::scheduler_TP0", 20480), (1, "sglang::scheduler_TP1", 518)
    }  # fmt: skip
    pid = host.gpu_holders()[0].pid
    assert host.sh(f"cat /proc/{pid}/comm").stdout == "sglang::schedul\n"
    assert "CUDA_VISIBLE_DEVICES=1,0" in host.sh(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout
    assert bystanders.listener(host, PORT) == main
    assert "The server is fired up and ready to roll!" in host.journal("engine-1")


def test_vllm_has_the_tree_of_vllm_and_outlives_its_launcher(host: TestHost) -> None:
    main = start(host, vllm_argv, ranks=2)
    assert titles(host)[1:] == ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]
    assert titles(host)[0] == " ".join(vllm_argv(PORT, ranks=2))
    assert len(host.gpu_holders()) == 3
    host.sh("systemctl stop engine-1")
    assert host.gpu_holders() == []
    host.ssh(f"setsid nohup {' '.join(vllm_argv(PORT, ranks=2))} >/dev/null 2>&1 </dev/null &")
    wait_healthy(host, PORT)
    main = bystanders.listener(host, PORT)
    host.sh(f"kill -KILL {main}; sleep 0.5")
    assert len(host.gpu_holders()) == 3
    assert host.sh(f"ss -Hltn sport = {PORT}").stdout == ""


def test_without_spt_noenv_a_title_takes_the_environment(host: TestHost) -> None:
    made = bystanders.by_hand(host, port=PORT, env={"STOKER_LAUNCH": "v1:x"})
    rank = host.gpu_holders()[0].pid
    assert host.sh(f"tr -d '\\0' < /proc/{rank}/environ").stdout == ""
    assert "STOKER_LAUNCH=v1:x" in host.sh(f"tr '\\0' '\\n' < /proc/{made.pid}/environ").stdout


@BOTH
def test_an_engine_started_by_hand_generates(host: TestHost, argv: Argv) -> None:
    start(host, argv)
    done = generate(host, PORT, tokens=7)
    assert (done.status, done.tokens, done.body["model"]) == (200, 7, "/models/m")
    chat = {"model": "/models/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    done = ask(host, PORT, "/v1/chat/completions", chat)
    assert (done.status, done.tokens) == (200, 3)
    assert done.body["choices"][0]["message"]["content"]
    assert generate(host, PORT, model="other").status == 404
    models = ask(host, PORT, "/v1/models").body["data"]
    assert (models[0]["id"], models[0]["max_model_len"]) == ("/models/m", 32768)


def test_served_name_key_and_metrics(host: TestHost) -> None:
    host.write("/tmp/config.yaml", b"api-key: secret\n")
    more = ["--served-model-name", "m", "--enable-metrics", "--config", "/tmp/config.yaml"]
    run_unit(host, "engine-1", sglang_argv(PORT, more=more))
    wait_healthy(host, PORT)
    assert generate(host, PORT, model="m").status == 401
    curl = f"curl -s -H 'Authorization: Bearer secret' 127.0.0.1:{PORT}/v1/completions -d '{{\"model\":\"m\"}}'"
    assert json.loads(host.sh(curl).stdout)["usage"]["completion_tokens"] == 16
    assert 'sglang:generation_tokens_total{model_name="m"} 16.0' in host.sh(f"curl -s 127.0.0.1:{PORT}/metrics").stdout


@BOTH
def test_term_ends_it_with_status_0(host: TestHost, argv: Argv) -> None:
    start(host, argv, ranks=2)
    host.sh("systemctl stop engine-1")
    assert show(host, "Result") in ("success", "")
    assert host.gpu_holders() == []


@BOTH
def test_a_bad_flag_exits_2_with_the_error_last(host: TestHost, argv: Argv) -> None:
    done = host.sh(" ".join(argv(PORT, more=["--bad-flag", "x"])), check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("error: unrecognized arguments: --bad-flag x")


@pytest.mark.parametrize(("argv", "end"), [(sglang_argv, "killed, status=9/KILL"), (vllm_argv, "clean")])
def test_crash_on_the_first_generation(host: TestHost, argv: Argv, end: str) -> None:
    start(host, argv, {"STANDIN_CRASH_FIRST": "1"})
    assert generate(host, PORT).status in (0, 500)
    how, log = over(host)
    assert how == end
    assert "object has no attribute" in log


@BOTH
def test_crash_on_the_second_speculative_block(host: TestHost, argv: Argv) -> None:
    start(host, argv, {"STANDIN_CRASH_ABOVE": "8"}, ranks=2)
    assert generate(host, PORT, tokens=8).status == 200
    assert generate(host, PORT, tokens=9).status in (0, 500)
    over(host)
    assert host.gpu_holders() == []


@BOTH
def test_a_hang_keeps_health_and_models(host: TestHost, argv: Argv) -> None:
    start(host, argv)
    host.write("/etc/standin/faults.json", json.dumps({"ports": {str(PORT): {"hang": True}}}).encode())
    assert generate(host, PORT, timeout_s=0.5).status == 0
    assert host.sh(f"curl -s -o /dev/null -w '%{{http_code}}' 127.0.0.1:{PORT}/health").stdout == "200"
    assert ask(host, PORT, "/v1/models").status == 200
    host.sh("rm /etc/standin/faults.json; sleep 0.3")
    assert generate(host, PORT).status == 200


@BOTH
def test_it_dies_while_loading_with_the_exception_asked_for(host: TestHost, argv: Argv) -> None:
    start(host, argv, {"STANDIN_LOAD_FAIL": "torch.OutOfMemoryError: CUDA out of memory."}, healthy=False)
    how, log = over(host)
    assert how in ("killed, status=9/KILL", "exited, status=1/FAILURE")
    assert "torch.OutOfMemoryError: CUDA out of memory." in log


def test_a_silent_load_says_nothing_and_a_loud_one_shows_its_bar_at_the_end(host: TestHost) -> None:
    start(host, sglang_argv, {"STANDIN_LOAD_SILENT": "1"})
    assert "Load weight" not in host.journal("engine-1")
    host.sh("systemctl stop engine-1")
    start(host, sglang_argv, {"STANDIN_LOAD_S": "1.5"}, healthy=False)
    host.wait_until("journalctl -o cat -u engine-1 | grep -q 'Load weight begin'")
    assert "Multi-thread loading shards" not in host.journal("engine-1")
    wait_healthy(host, PORT)
    raw = host.sh("journalctl --all -o cat -u engine-1").stdout
    bars = [line for line in raw.split("\n") if "Multi-thread loading shards" in line]
    assert len(bars) == 1
    assert re.search(r"shards:\s+25% Completed \| 1/4.*\r.*100% Completed \| 4/4", bars[0])


def test_no_room_on_the_card_is_an_out_of_memory(host: TestHost) -> None:
    bystanders.unrelated(host, gpu=0, mib=130000)
    start(host, sglang_argv, healthy=False)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB" in over(host)[1]


def test_a_taken_port_is_found_late_by_sglang_and_early_by_vllm(host: TestHost) -> None:
    bystanders.unrelated(host, port=PORT)
    start(host, sglang_argv, healthy=False)
    how, log = over(host)
    assert how == "exited, status=3/NOTIMPLEMENTED"
    assert log.index("Load weight end") < log.index("address already in use")
    host.sh("systemctl reset-failed")
    start(host, vllm_argv, healthy=False)
    assert "OSError: [Errno 98] Address already in use" in over(host)[1]


@BOTH
def test_strays_leave_the_unit_and_keep_memory_and_port(host: TestHost, argv: Argv) -> None:
    start(host, argv, {"STANDIN_STRAY": "1", "STANDIN_STRAY_PORT": "1"}, ranks=2)
    assert generate(host, PORT).status == 200
    host.sh("systemctl stop engine-1")
    rows: list[GpuHolder] = host.gpu_holders()
    assert len(rows) == 3
    assert "stray-" in host.sh(f"cat /proc/{rows[0].pid}/cgroup").stdout
    host.wait_until(f"ss -Hltn sport = {PORT} | grep -q .", timeout_s=3)
    assert generate(host, PORT, timeout_s=0.5).status == 0


@BOTH
def test_ignored_term_needs_kill(host: TestHost, argv: Argv) -> None:
    main = start(host, argv, {"STANDIN_IGNORE_TERM": "1"}, ranks=2)
    pids = {main, *(row.pid for row in host.gpu_holders())}
    host.sh(f"kill -TERM {' '.join(map(str, pids))}; sleep 0.3")
    assert generate(host, PORT).status == 200
    host.sh("systemctl kill --signal=KILL engine-1")
    host.wait_until("! nvidia-smi --query-compute-apps=pid --format=csv,noheader | grep -q .")


@BOTH
def test_stopped_workers_hold_memory_and_ignore_term(host: TestHost, argv: Argv) -> None:
    start(host, argv, {"STANDIN_STOP_SELF": "workers"})
    pid = host.gpu_holders()[0].pid
    host.wait_until(f"grep -q 'State:.T' /proc/{pid}/status")
    host.sh(f"kill -TERM {pid}; sleep 0.2")
    assert host.gpu_holders()[0].pid == pid
    assert generate(host, PORT, timeout_s=0.5).status == 0


@BOTH
def test_the_old_process_goes_on_answering_after_term(host: TestHost, argv: Argv) -> None:
    start(host, argv, {"STANDIN_LINGER_S": "1.5"})
    host.sh("systemctl stop --no-block engine-1; sleep 0.3")
    assert show(host, "ActiveState") == "deactivating"
    assert generate(host, PORT).status == 200
    over(host)
    assert ask(host, PORT, "/v1/models").status == 0


def test_refused_slow_empty_and_misnamed_answers(host: TestHost) -> None:
    start(host, sglang_argv)

    def fault(**switches: object) -> None:
        host.write("/etc/standin/faults.json", json.dumps(switches).encode())

    fault(refuse="context too long")
    assert generate(host, PORT).status == 400
    fault(slow_s=2)
    assert generate(host, PORT, timeout_s=1).status == 0
    fault(tokens=0)
    done = generate(host, PORT, timeout_s=10)
    assert (done.status, done.tokens) == (200, 0)
    fault(served_name="someone-else")
    assert generate(host, PORT).status == 404
    fault(health_status=503)
    assert host.sh(f"curl -s -o /dev/null -w '%{{http_code}}' 127.0.0.1:{PORT}/health").stdout == "503"


def test_prefill_and_decode_generate_through_the_router_only(host: TestHost) -> None:
    for role, port in (("prefill", 30011), ("decode", 30012)):
        run_unit(host, f"engine-{role}", sglang_argv(port, more=["--disaggregation-mode", role]))
    router = ["/opt/venv/bin/python", "-m", "sglang_router.launch_router", "--pd-disaggregation", "--port", "30010"]
    urls = ["--prefill", "http://127.0.0.1:30011", "8998", "--decode", "http://127.0.0.1:30012"]
    run_unit(host, "engine-router", [*router, *urls])
    host.wait_until("curl -sf 127.0.0.1:30010/readiness")
    assert generate(host, 30011).status == 400
    assert (generate(host, 30010).status, generate(host, 30010).tokens) == (200, 8)
    pid = bystanders.listener(host, 30010)
    assert host.sh(f"tr -d '\\0' < /proc/{pid}/cmdline").stdout == "sglang::router"
    host.sh("systemctl stop engine-decode")
    assert generate(host, 30010).status == 503


def test_bystanders_are_what_they_say(host: TestHost) -> None:
    alice = bystanders.other_user(host, gpu=0)
    docker = bystanders.in_docker(host, gpu=1)
    server = bystanders.by_hand(host, port=30007, stay=True)
    shell = bystanders.login_shell(host, env={"STOKER_LAUNCH": "v1:mine"})
    cgroup = {who.pid: host.sh(f"cat /proc/{who.pid}/cgroup").stdout for who in (alice, docker, server, shell)}
    assert host.sh(f"stat -c %U /proc/{alice.pid}").stdout == "alice\n"
    assert re.search(r"/docker-[0-9a-f]{64}\.scope", cgroup[docker.pid])
    assert "/session-" in cgroup[server.pid]
    assert "/session-" in cgroup[shell.pid]
    assert "STOKER_LAUNCH=v1:mine" in host.sh(f"tr '\\0' '\\n' < /proc/{shell.pid}/environ").stdout
    assert host.sh(f"ls -l /proc/{shell.pid}/fd/0").stdout.split("-> ")[1].startswith("/dev/pts/")
    assert generate(host, 30007, model="/models/theirs").status == 200
    shell.type("exit\n")
    host.wait_until(f"! test -e /proc/{shell.pid}")
    server.hang_up()
    assert all(who.alive for who in (alice, docker, server))
    assert not shell.alive
