"""Texts of a host's faults, of what follows a cause (symptoms, last words), and of the phases of a start. Data only.

Read by `failures`; sources as in `failure_rules`. NCCL's and CUDA's texts were found in their shipped libraries.
"""

from __future__ import annotations

import re

from daemon.domain.status import Reason
from daemon.engines.failure_rules import CAUSES, EXCEPTION, GENERIC, SYMPTOM, Rule, rule

_HOST = (
    rule(
        "port",
        Reason.PORT_IN_USE,
        "somebody else listens there: look who, before starting again",
        r"\[Errno 98\]",
        r"[Aa]ddress already in use",
        r"is used by a process already",
        r"EADDRINUSE",
        r"The server socket has failed to listen on any local network address",
        r"\w+ at \d+ is not available in \d+ seconds",
        retryable=True,
    ),
    rule(
        "driver-mismatch",
        Reason.DRIVER_LIBRARY_MISMATCH,
        "reboot the host or reload the driver's modules",
        r"Driver/library version mismatch",
        r"unsupported display driver / cuda driver combination",
    ),
    rule(
        "driver",
        Reason.DRIVER_NOT_LOADED,
        "the NVIDIA driver is missing, too old, or its fabric manager is not up",
        r"Found no NVIDIA driver",
        r"The NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient",
        r"system not yet initialized",
        r"Failed to infer device type",
        r"No CUDA GPUs are available",
    ),
    rule(
        "gpu-lost",
        Reason.GPU_LOST,
        "the card fell off the bus: the host needs a person",
        r"Xid \([^)]*\): 79\b",
        r"GPU has fallen off the bus",
        r"GPU is lost",
    ),
    rule(
        "gpu-fault",
        Reason.GPU_NEEDS_RESET,
        "a hardware fault of a GPU or link: drain the card and reset it",
        r"Xid \([^)]*\): (?:48|74|94|95|119|120|154)\b",
        r"uncorrectable (?:ECC|NVLink) error",
        r"cudaErrorContained",
        r"Invalid access of peer GPU memory over nvlink",
        r"hardware stack error",
    ),
    rule(
        "gpu-arch",
        Reason.ENGINE_CRASHED,
        "this build of the engine has no code for this GPU",
        r"no kernel image is available for execution",
        r"is not compatible with the current PyTorch installation",
    ),
    rule(
        "gpu-exception",
        Reason.ENGINE_CRASHED,
        "a kernel of the engine failed; it starts anew with a fresh process",
        r"CUDA error: (?:an illegal memory access|device-side assert|unspecified launch failure|misaligned address)",
        r"Xid \([^)]*\): (?:13|31)\b",
        retryable=True,
    ),
    rule(
        "nccl",
        Reason.ENGINE_CRASHED,
        "NCCL could not connect its ranks: look at interfaces, /dev/shm and the other ranks",
        r"Bootstrap : no socket interface found",
        r"ncclUnhandledCudaError",
        r"ncclSystemError",
        r"ncclInternalError",
        r"ncclInvalidUsage",
        r"Call to bind failed",
        r"NET/IB : No device found",
        r"Mooncake Transfer Engine initialization failed",
        rank=SYMPTOM,
        retryable=True,
    ),
    rule(
        "rendezvous",
        Reason.ENGINE_CRASHED,
        "another rank or node did not come: look there for the cause",
        r"The client socket has timed out after",
        r"wait timeout after \d+ms",
        r"DistNetworkError",
        r"Error fetching prefill (?:server )?info from bootstrap",
        rank=SYMPTOM,
        retryable=True,
    ),
)
_SYMPTOMS = (
    rule(
        "graph-capture",
        Reason.ENGINE_CRASHED,
        "graph capture failed; the text behind it may be another rank's fault",
        r"Capture \S*\s*(?:cuda|CUDA) graph failed",
        rank=SYMPTOM,
    ),
    rule(
        "peer-lost",
        Reason.ENGINE_CRASHED,
        "this rank only lost another one: the cause is in that one's lines",
        r"Connection (?:closed|reset) by peer",
        r"ncclRemoteError",
        r"remote process exited or there was a network error",
        r"DistBackendError: NCCL error",
        rank=EXCEPTION,
        retryable=True,
    ),
    rule(
        "start-timeout",
        Reason.ENGINE_CRASHED,
        "the start took longer than the engine's own limit: usually a slow disk",
        r"Timed out waiting for engine core processes to start",
        r"Initialization failed\. warmup error",
        rank=SYMPTOM,
        retryable=True,
    ),
    rule(
        "stall",
        Reason.ENGINE_CRASHED,
        "the engine stood still and its own watchdog ended it",
        r"Watchdog caught collective operation timeout",
        r"[Ww]atchdog timeout \(",
        r"RPC call to \S+ timed out",
        r"Some NCCL operations have failed or timed out",
        r"Waiting 60\.0 seconds for CUDA coredumps",
        rank=SYMPTOM,
        retryable=True,
    ),
    rule(
        "sigbus",
        Reason.SHARED_MEMORY_FULL,
        "a process died of SIGBUS: usually full shared memory",
        r"exit code:? -7\b",
        r"\bBus error\b",
        r"SIGBUS",
        rank=SYMPTOM,
    ),
    rule(
        "child-crash",
        Reason.ENGINE_CRASHED,
        "a worker process crashed in native code",
        r"exit code:? -(?:3|4|6|8|11)\b",
        r"Segmentation fault",
        r"Illegal instruction",
        r"Fatal Python error",
        r"died unexpectedly \(exit code: None\)",
        r"terminate called after throwing",
        rank=EXCEPTION,
        retryable=True,
    ),
    rule(
        "killed",
        Reason.KILLED_BY_SIGNAL,
        "a worker got SIGKILL: by hand, by the OOM killer (see the kernel log), or with its parent",
        r"exit code:? -9\b",
        r"core proc\(s\): \{.*-9",
        rank=EXCEPTION,
        retryable=True,
    ),
)
_LAST_WORDS = (
    rule(
        "engine-dead",
        Reason.ENGINE_CRASHED,
        "the cause should stand above this line",
        r"EngineDeadError",
        r"EngineCore encountered (?:a fatal error|an issue)",
        r"EngineCore failed to start",
        r"Engine core initialization failed",
        r"WorkerProc initialization failed",
        r"scheduler is dead",
        r"scheduler died during initialization",
        r"died unexpectedly",
        r"crashed with exit code",
        r"Received sigquit from a child process",
        r"Health check failed\. Server couldn't get a response",
        r"EOFError",
        rank=GENERIC,
        retryable=True,
    ),
    rule(
        "main-killed",
        Reason.KILLED_BY_SIGNAL,
        "SIGKILL alone is no proof of a full memory: SGLang ends itself so too",
        r"code=killed, status=9/KILL",
        rank=GENERIC + 1,
        retryable=True,
    ),
    rule(
        "main-signalled",
        Reason.KILLED_BY_SIGNAL,
        "",
        r"code=(?:killed|dumped), status=\d+/\w+",
        rank=GENERIC + 1,
        retryable=True,
    ),
    rule(
        "start-limit",
        Reason.START_LIMIT_HIT,
        "systemd gave up after repeated failures: see the lines above",
        r"Start request repeated too quickly",
        r"start-limit-hit",
        rank=GENERIC + 1,
    ),
    rule("exit", Reason.EXITED, "", r"Main process exited, code=exited, status=\d+", rank=GENERIC + 2, retryable=True),
)

RULES: tuple[Rule, ...] = (*CAUSES, *_HOST, *_SYMPTOMS, *_LAST_WORDS)

LOG_CLOSED = re.compile(
    r"No journal files were opened due to insufficient permissions|not seeing messages from other users"
)

# phases of a start, for the hint of an out-of-memory error: the last one begun before it
PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "weights",
        re.compile(r"Load weight begin|Starting to load model|Loading model from scratch|Loading drafter model"),
    ),
    ("kv-cache", re.compile(r"Load weight end|Model loading took|KV Cache is allocated|Available KV cache memory")),
    (
        "graphs",
        re.compile(r"(?i)capture .*graph begin|Capturing CUDA graphs|GPU KV cache size|Capturing (?:batches|prefill)"),
    ),
    ("serving", re.compile(r"fired up and ready to roll|Application startup complete|Graph capturing finished")),
)
OOM_HINTS = {
    "": "lower memoryFraction, contextLength or maxRunningRequests, or use more GPUs",
    "weights": "the weights do not fit: more GPUs, quantization, or look who else holds memory",
    "kv-cache": "lower memoryFraction: nothing is left beside weights and cache",
    "graphs": "in graph capture: lower memoryFraction or the largest batch of the CUDA graphs (cuda-graph-max-bs)",
    "serving": "while serving: lower memoryFraction or maxRunningRequests",
}
