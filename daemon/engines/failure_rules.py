"""Texts that name a root cause in a spec, its memory or its files; and what a rule is. Data only.

Read by `failures`. Texts were read in SGLang 0.5.6 to 0.5.23, vLLM 0.12.0 to 0.33.0, torch 2.14 and systemd 252,
or in reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daemon.domain.status import Reason

CAUSE, SYMPTOM, EXCEPTION, GENERIC = range(4)


@dataclass(frozen=True, slots=True)
class Rule:
    """One class of failure. `rank`: a lower one is nearer to the root; `retryable`: the same launch may work later."""

    kind: str
    reason: Reason
    pattern: re.Pattern[str]
    hint: str
    rank: int = CAUSE
    retryable: bool = False


def rule(kind: str, reason: Reason, hint: str, *patterns: str, rank: int = CAUSE, retryable: bool = False) -> Rule:
    return Rule(kind, reason, re.compile("|".join(f"(?:{one})" for one in patterns)), hint, rank, retryable)


_USAGE = (
    rule("unknown-flag", Reason.INVALID_LAUNCH_ARGS, "", r"error: unrecognized arguments: (?P<flag>--?\S+)"),
    rule(
        "bad-argument",
        Reason.INVALID_LAUNCH_ARGS,
        "correct the argument in the spec",
        r"error: argument \S+: ",
        r"error: ambiguous option: ",
        r"error: the following arguments are required",
        r"error: invalid argument: ",
        r"Value .* cannot be converted to",
    ),
    rule(
        "spawn",
        Reason.INVALID_LAUNCH_ARGS,
        "the executable, user or folder of the unit is wrong on this host",
        r"Failed (?:at step|to) (?:EXEC|USER|GROUP|CHDIR)\b",
        r"Failed to locate executable",
        r"status=20[0-9]/[A-Z]+",
    ),
)
_SPEC = (
    rule(
        "parallelism",
        Reason.INVALID_PARALLELISM,
        "choose a parallel size that divides",
        r"attention heads \((?P<whole>\d+)\) must be divisible by tensor parallel size",
        r"must be divisible by tensor parallel size",
        r"(?P<number>\d+) is not divisible by (?P<by>\d+)",
    ),
    rule(
        "too-few-gpus",
        Reason.INVALID_PARALLELISM,
        "it uses more GPUs than it sees: compare with the placement",
        r"World size \(\d+\) is larger than the number of available GPUs",
        r"CUDA error: invalid device ordinal",
    ),
    rule(
        "speculative",
        Reason.INVALID_SPECULATIVE_CONFIG,
        "correct the speculative settings (draft model, the three numbers)",
        r"Unknown speculative algorithm name",
        r"Unsupported speculative method",
        r"num_speculative_tokens:? ?\d* must be",
        r"num_speculative_tokens.*was not provided",
        r"has no attribute '(?:set_embed\w*|hot_token_id)'",
        r"argument --speculative-\S+: invalid",
        r"DFLASH .*(?:requires|needs|must)",
        r"speculative_num_steps is None",
    ),
    rule(
        "draft-mismatch",
        Reason.INVALID_SPECULATIVE_CONFIG,
        "the draft model does not belong to this target",
        r"Target and draft model should have the same vocabulary size",
        r"DFLASH .* does not match the target",
        r"draft hidden size and vocabulary must match",
    ),
    rule(
        "weight-shape",
        Reason.INVALID_SPECULATIVE_CONFIG,
        "weights of another shape: usually a draft of another target",
        r"Attempted to load weight \(",
        r"The size of tensor a .* must match",
        rank=SYMPTOM,
    ),
    rule(
        "attention-backend",
        Reason.UNSUPPORTED_ATTENTION_BACKEND,
        "choose another attention backend; compare compute capability numbers, not family names",
        r"Invalid attention backend:",
        r"is only supported on Blackwell",
        r"The '?\w+'? backend is not supported on",
        r"MHA backend .* requires Hopper",
        r"only supports? kv-cache-dtype",
        r"Selected backend .* is not valid for this configuration",
        r"No valid attention backend found for",
        r"No common block size for",
    ),
    rule(
        "config",
        Reason.INVALID_LAUNCH_ARGS,
        "the engine refuses this combination of settings",
        r"pydantic_core\S*ValidationError",
        r"validation errors? for \w+",
        r"Extra inputs are not permitted",
        r"unexpected_keyword_argument",
        rank=SYMPTOM,
    ),
    rule(
        "remote-code",
        Reason.INVALID_LAUNCH_ARGS,
        "set model.trustRemoteCode if you trust the model's own code",
        r"Please pass the argument `trust_remote_code=True`",
    ),
    rule(
        "unknown-model",
        Reason.INVALID_LAUNCH_ARGS,
        "this engine or its transformers is too old for the model",
        r"Unrecognized model in",
        r"Transformers does not recognize this architecture",
        r"Model architectures .* are not supported for now",
    ),
)
_MEMORY = (
    rule(
        "gpu-oom",
        Reason.OUT_OF_GPU_MEMORY,
        "",
        r"OutOfMemoryError: CUDA out of memory",
        r"CUDA out of memory\. Tried to allocate",
        r"CUDA out of memory occurred when warming up",
        r"cudaErrorMemoryAllocation",
    ),
    rule(
        "kv-too-small",
        Reason.KV_CACHE_TOO_SMALL,
        "raise memoryFraction or lower contextLength, after looking who else holds the memory",
        r"max seq len \(\d+\) is larger than the maximum number of tokens",
        r"larger than the available KV cache memory",
        r"No available memory for the cache blocks",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
    ),
    rule(
        "kv-below-context",
        Reason.KV_CACHE_TOO_SMALL,
        "the KV pool is smaller than contextLength",
        r"KV pool holds \d+ tokens, fewer than --context-length",
        rank=GENERIC,
    ),
    rule(
        "gpu-busy",
        Reason.MEMORY_HELD_BY_OTHERS,
        "something else holds memory of these GPUs: look for strays first",
        r"Free memory on device .* on startup is less than desired",
        r"Error in memory profiling\. Initial free memory",
        r"(?:Error|Exception): The memory capacity is unbalanced",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        retryable=True,
    ),
    rule(
        "gpu-unbalanced",
        Reason.MEMORY_HELD_BY_OTHERS,
        "GPUs have different free memory: look for strays first",
        r"The memory capacity is unbalanced",
        rank=GENERIC,
        retryable=True,
    ),
    rule(
        "shm-full",
        Reason.SHARED_MEMORY_FULL,
        "shared memory is full: crashed engines leave segments there",
        r"creating shared memory segment .*No space left on device",
        r"[/]dev/shm\S*.*No space left on device",
        r"No space left on device.*/dev/shm",
        r"unable to (?:write to|allocate|mmap) .*shared memory",
    ),
    rule("disk-full", Reason.ENGINE_CRASHED, "a disk of the host is full", r"No space left on device", rank=SYMPTOM),
    rule(
        "host-oom",
        Reason.HOST_OOM,
        "the host ran out of memory, not the GPU: lowering memoryFraction does not help",
        r"Out of memory: Killed process",
        r"Memory cgroup out of memory",
        r"oom-kill:",
        r"Failed with result 'oom-kill'",
        r"killed by the OOM killer",
        retryable=True,
    ),
)
_FILES = (
    rule(
        "model-path",
        Reason.MODEL_NOT_FOUND,
        "look at model.path on the host: is it mounted and complete?",
        r"Repo id must be in the form",
        r"does not appear to have a file named",
        r"Cannot find any model weights with",
        r"Invalid repository ID or local directory specified",
        r"is not a local folder and is not a valid model identifier",
        r"FileNotFoundError: .*(?:config\.json|safetensors)",
        r"SafetensorError: ",
        r"error loading model",
    ),
    rule(
        "hub",
        Reason.MODEL_NOT_FOUND,
        "the model is not on the host and the hub cannot be reached",
        r"We couldn't connect to 'https://huggingface\.co'",
        r"LocalEntryNotFoundError",
        r"OfflineModeIsEnabled",
        retryable=True,
    ),
    rule(
        "hub-access",
        Reason.MODEL_NOT_FOUND,
        "the hub refuses this model: it is gated, private, or the name is wrong",
        r"GatedRepoError",
        r"access a gated repo",
        r"Cannot access gated repo for url",
        r"\b40[13] Client Error",
        r"Repository Not Found for url",
    ),
    rule(
        "module",
        Reason.MODULE_MISSING,
        "the engine's Python environment is incomplete or of another version",
        r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?ModuleNotFoundError: ",
        r"python\S*: No module named",
        r"PackageNotFoundError: ",
        r"Error while finding module specification",
        r"is installed with version .* less than the minimum required",
        r"with minimum required version .* is not installed",
        r"operator \S+ does not exist",
        r"undefined symbol: ",
    ),
    rule(
        "import",
        Reason.MODULE_MISSING,
        "a module of the engine's Python environment does not load",
        r"ImportError: ",
        r"ModuleNotFoundError: ",
        rank=SYMPTOM,
    ),
    rule("permission", Reason.ENGINE_CRASHED, "the unit's user may not read or write this path", r"PermissionError: "),
    rule(
        "toolchain",
        Reason.ENGINE_CRASHED,
        "the host lacks a compiler, CUDA toolkit or headers for just-in-time builds",
        r"Failed to find C compiler",
        r"Could not find nvcc",
        r"CUDA_HOME environment variable is not set",
        r"Error building extension",
        r"nvcc fatal",
        r"Internal Triton PTX codegen error",
        r"ptxas` failed",
        r"out of resource: shared memory",
    ),
)
CAUSES: tuple[Rule, ...] = (*_USAGE, *_SPEC, *_MEMORY, *_FILES)
