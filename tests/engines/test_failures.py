"""Log excerpts and the root cause found in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.status import Reason
from daemon.engines.failures import MAX_EVIDENCE, MAX_LINE, classify

ONE_LINERS = [
    ("launch_server.py: error: unrecognized arguments: --reasoning_parser kimi_k2", Reason.INVALID_LAUNCH_ARGS),
    ("vllm serve: error: argument --max-model-len: invalid int value: 'x'", Reason.INVALID_LAUNCH_ARGS),
    ("sglang serve: error: ambiguous option: --pp could match --pp-size, --pp-x", Reason.INVALID_LAUNCH_ARGS),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", Reason.INVALID_LAUNCH_ARGS),
    ("stoker-a.server.service: Failed at step EXEC spawning /opt/x: No such file", Reason.INVALID_LAUNCH_ARGS),
    (
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        Reason.INVALID_PARALLELISM,
    ),
    (
        "  Value error, Total number of attention heads (64) must be divisible by tensor parallel size (3).",
        Reason.INVALID_PARALLELISM,
    ),
    (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (79392). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        Reason.KV_CACHE_TOO_SMALL,
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (14.1 GiB).",
        Reason.KV_CACHE_TOO_SMALL,
    ),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", Reason.KV_CACHE_TOO_SMALL),
    ("AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'", Reason.INVALID_SPECULATIVE_CONFIG),
    ("ValueError: Unknown speculative algorithm name: DDTREE", Reason.INVALID_SPECULATIVE_CONFIG),
    (
        "ValueError: TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.",
        Reason.UNSUPPORTED_ATTENTION_BACKEND,
    ),
    ("ValueError: The 'fa3' backend is not supported on Blackwell GPUs", Reason.UNSUPPORTED_ATTENTION_BACKEND),
    ("ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])", Reason.UNSUPPORTED_ATTENTION_BACKEND),
    (
        "ValueError: Free memory on device (3.1/139.7 GiB) on startup is less than desired GPU memory utilization",
        Reason.MEMORY_HELD_BY_OTHERS,
    ),
    ("HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'", Reason.MODEL_NOT_FOUND),
    (
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
        Reason.PORT_IN_USE,
    ),
    ("rpc_port 30047 is used by a process already", Reason.PORT_IN_USE),
    ("RuntimeError: Address already in use (os error 98)", Reason.PORT_IN_USE),
    (
        "misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ewjreo (size 330), "
        "error: No space left on device (28)",
        Reason.SHARED_MEMORY_FULL,
    ),
    (
        "kernel: Out of memory: Killed process 718651 (VLLM::Worker_TP) task_memcg=/system.slice/x.service",
        Reason.HOST_OOM,
    ),
    ("x.service: Failed with result 'oom-kill'.", Reason.HOST_OOM),
    ("x.service: Main process exited, code=killed, status=9/KILL", Reason.KILLED_BY_SIGNAL),
    ("/opt/venv/bin/python: No module named sglang", Reason.MODULE_MISSING),
    ("ModuleNotFoundError: No module named 'requests'", Reason.MODULE_MISSING),
    ("Failed to initialize NVML: Driver/library version mismatch", Reason.DRIVER_LIBRARY_MISMATCH),
    ("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.", Reason.GPU_LOST),
    ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", Reason.GPU_NEEDS_RESET),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", Reason.ENGINE_CRASHED),
    ("TimeoutError: Timed out waiting for engine core processes to start", Reason.ENGINE_CRASHED),
    ("Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down executor.", Reason.ENGINE_CRASHED),
    ("x.service: Main process exited, code=exited, status=0/SUCCESS", Reason.EXITED),
    ("all is quiet", Reason.UNCLASSIFIED),
]


@pytest.mark.parametrize(("line", "reason"), ONE_LINERS)
def test_a_known_line_is_its_reason(line: str, reason: Reason) -> None:
    failure = classify(["INFO: something before", line, ""])
    assert failure.reason is reason
    assert failure.line == line
    assert failure.evidence[0] == line


@pytest.mark.parametrize(
    ("line", "reason"), [case for case in ONE_LINERS if case[1] not in (Reason.UNCLASSIFIED, Reason.EXITED)]
)
def test_generic_last_lines_never_hide_a_cause(line: str, reason: Reason) -> None:
    noise = [
        "[2026-11-01 12:00:09] Received sigquit from a child process. It usually means the child failed.",
        "kill_process_tree called: parent_pid=1",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "x.service: Main process exited, code=exited, status=1/FAILURE",
        "x.service: Start request repeated too quickly.",
    ]
    if reason is not Reason.KILLED_BY_SIGNAL:
        assert classify([line, *noise]).reason is reason


def test_an_unknown_flag_gets_the_closest_name() -> None:
    usage = ["usage: launch_server.py [-h] --model-path MODEL_PATH"] * 300
    failure = classify([*usage, "launch_server.py: error: unrecognized arguments: --reasoning_parser kimi_k2"])
    assert failure.hint == "did you mean --reasoning-parser?"
    assert failure.retryable is False
    assert "--tensor-parallel-size" in classify(["vllm: error: unrecognized arguments: --tensor-paralel-size 2"]).hint


def test_divisors_of_the_heads_are_named() -> None:
    hint = classify(
        ["ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8)."]
    ).hint
    assert hint.endswith("28: 1, 2, 4, 7, 14, 28")


def test_the_first_error_over_all_ranks_is_the_cause() -> None:
    oom = "[12:00:01 TP3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    loud = "[12:00:03 TP0] Exception: Capture cuda graph failed: [pair.cc:534] Connection closed by peer"
    for lines in ([oom, loud], [loud, oom]):
        failure = classify(lines)
        assert (failure.reason, failure.line) == (Reason.OUT_OF_GPU_MEMORY, oom)
        assert loud in failure.evidence
    assert "cuda-graph-max-bs" in classify([oom, loud]).hint


def test_equal_causes_are_ordered_by_their_own_clocks() -> None:
    late = "[2026-11-01 12:00:05 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    early = "[2026-11-01 12:00:01 TP0] ValueError: Invalid attention backend: x"
    assert classify([late, early]).line == early


@pytest.mark.parametrize(
    ("before", "word"),
    [
        (["Load weight begin. avail mem=79.00 GB"], "weights"),
        (["Load weight begin.", "Load weight end. avail mem=1 GB"], "lower memoryFraction"),
        (["Capture cuda graph begin. This can take up to several minutes."], "graph capture"),
        (["The server is fired up and ready to roll!"], "while serving"),
    ],
)
def test_the_hint_for_memory_depends_on_the_phase(before: list[str], word: str) -> None:
    failure = classify([*before, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"])
    assert failure.reason is Reason.OUT_OF_GPU_MEMORY
    assert word in failure.hint


def test_an_unknown_refusal_before_anything_began_is_the_specs_fault() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1, in f', "ValueError: chunked prefill is odd"]
    assert classify([*trace, "kill_process_tree called"]).reason is Reason.INVALID_LAUNCH_ARGS
    later = classify(["Load weight begin. avail mem=1 GB", *trace, "Received sigquit from a child process."])
    assert (later.reason, later.line) == (Reason.ENGINE_CRASHED, "ValueError: chunked prefill is odd")
    assert classify(["Traceback (most recent call last):", "AssertionError"]).reason is Reason.INVALID_LAUNCH_ARGS


def test_vllm_lines_are_read_behind_their_prefix_and_colours() -> None:
    failure = classify(
        [
            "\x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m ERROR 11-01 10:00:00 [core.py:1] EngineCore failed to start.",
            "\x1b[36m(EngineCore_DP0 pid=9)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
            "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    assert failure.reason is Reason.OUT_OF_GPU_MEMORY
    assert failure.line.startswith("(EngineCore_DP0 pid=9) torch")


def test_a_harmless_early_warning_does_not_win() -> None:
    lines = [
        "WARNING Failed to import x: ImportError: libx.so",
        "RuntimeError: CUDA error: an illegal memory access was",
    ]
    assert classify(lines).line == lines[1]
    assert (
        classify(["The memory capacity is unbalanced. Some GPUs may be occupied", "KeyError: 'x'"]).line
        == "KeyError: 'x'"
    )


def test_a_closed_journal_is_not_an_empty_one() -> None:
    closed = [
        "Hint: You are currently not seeing messages from other users and the system.",
        "      Users in the 'systemd-journal' group can see all messages. Pass -q to",
        "      turn off this notice.",
        "No journal files were opened due to insufficient permissions.",
    ]
    assert classify(closed).reason is Reason.LOGS_UNAVAILABLE
    assert classify(["-- No entries --"]).reason is Reason.UNCLASSIFIED
    assert classify([]).evidence == ()


def test_secrets_never_come_out() -> None:
    lines = [
        "server_args=ServerArgs(api_key='s3cr3tValue')",
        "sglang: error: unrecognized arguments: --x --api-key s3cr3tValue",
    ]
    failure = classify(lines)
    assert "s3cr3tValue" not in "".join((failure.line, failure.hint, *failure.evidence))


@given(st.lists(st.text() | st.sampled_from([line for line, _ in ONE_LINERS]), max_size=12))
def test_any_lines_give_a_bounded_answer(lines: list[str]) -> None:
    failure = classify(lines)
    assert len(failure.evidence) <= MAX_EVIDENCE
    assert all(len(line) <= MAX_LINE for line in failure.evidence)
    assert failure.line == (failure.evidence[0] if failure.evidence else "")
