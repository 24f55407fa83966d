"""Variables that a process has and nobody declared: which of them count, and where they come from.

Every unit inherits the environment of systemd's manager, and `systemctl set-environment` adds to it. Only names that
engines and their libraries read count (`WATCHED`): LANG, PATH, INVOCATION_ID and the like never do. What a host had
when an instance was first placed or first seen there is the host's own (`Record.inherited`): an upgrade of Stoker, or
a DefaultEnvironment= that was always there, restarts nothing.

The manager's block is a person's and the whole host's, so it is never changed: our unit refuses the variable
(UnsetEnvironment=), which is written and reloaded without a restart; only a process that really has it is restarted.
"""

from __future__ import annotations

from daemon.domain.observation import Unit, Unknown
from daemon.domain.status import Drift
from daemon.engines.unit import parse_unit
from daemon.planner.world import Desired

WATCHED = (
    "CUBLAS", "CUDA_", "CUDNN_", "DG_", "FLASHINFER_", "FLASH_", "GLOO_", "HF_", "HUGGINGFACE_", "LD_", "MC_", "MKL_",
    "MOONCAKE_", "NCCL_", "NVIDIA_", "NVSHMEM_", "NVTE_", "OMP_", "PYTHON", "PYTORCH_", "RAY_", "SAFETENSORS_",
    "SGLANG_", "SGL_", "SPT_", "TOKENIZERS_", "TORCHINDUCTOR_", "TORCH_", "TRANSFORMERS_", "TRITON_", "UCX_", "VLLM_",
)  # fmt: skip
EXTRA = "(set)"


def undeclared(desired: Desired, names: frozenset[str]) -> frozenset[str]:
    """Those that count and that neither the declaration names nor the host had from the start."""
    record = desired.declared.record
    known = dict(desired.launch.env).keys() | set((record.inherited or ()) if record is not None else ())
    return frozenset(name for name in names if name.startswith(WATCHED) and name not in known)


def judged(desired: Desired) -> bool:
    """Whether it is known what the host had from the start."""
    record = desired.declared.record
    return record is not None and record.inherited is not None


def refused(unit: Unit) -> frozenset[str]:
    """What our text already keeps from the process."""
    return frozenset() if unit.file is None or unit.file.text is None else parse_unit(unit.file.text).unset


def to_refuse(desired: Desired, inherited: frozenset[str] | Unknown) -> frozenset[str]:
    """What the text should keep from the process, as far as is known now."""
    if isinstance(inherited, Unknown) or not judged(desired):
        return frozenset()
    return undeclared(desired, inherited)


def inherited_drift(desired: Desired, unit: Unit, inherited: frozenset[str] | Unknown) -> tuple[Drift, ...]:
    """What a start of now would inherit: shown and refused before any process has it."""
    names = sorted(to_refuse(desired, inherited) - refused(unit))
    return tuple(Drift(desired.unit, "loaded", f"env.{name}", "(not set)", "(inherited)") for name in names)


def extra_drift(desired: Desired, unit: Unit) -> tuple[Drift, ...]:
    """What the live process has and should not. The values are nobody's business: they may be secrets."""
    if unit.main is None or not judged(desired):
        return ()
    names = sorted(undeclared(desired, frozenset(name for name, _ in unit.main.env)))
    return tuple(Drift(desired.unit, "running", f"env.{name}", "(not set)", EXTRA, launch=True) for name in names)


def is_extra(drift: Drift) -> bool:
    """A variable beside the declared ones: worth a restart, and yet it is the declared process that serves."""
    return (drift.layer, drift.declared, drift.observed) == ("running", "(not set)", EXTRA)


def first_seen(desired: Desired, unit: Unit, inherited: frozenset[str] | Unknown) -> tuple[str, ...] | None:
    """What the host has from the start, to be remembered; None when it is remembered already, or not known."""
    if judged(desired) or isinstance(inherited, Unknown) or _process_unread(unit):
        return None
    here = inherited | frozenset(name for name, _ in (unit.main.env if unit.main is not None else ()))
    return tuple(sorted(undeclared(desired, here)))


def _process_unread(unit: Unit) -> bool:
    """It runs, or is about to, and what its process has of its launcher cannot be told from a later change yet."""
    if unit.active_state in ("inactive", "failed"):
        return False
    return unit.waits_in_gate or unit.main is None or not unit.main.argv


def own_doing(desired: Desired, unit: Unit, inherited: frozenset[str] | Unknown) -> tuple[str, ...]:
    """Variables that a process of our own start has from nowhere: its launcher sets them, a restart would again."""
    if isinstance(inherited, Unknown) or unit.main is None or not judged(desired):
        return ()
    if unit.loaded is None or isinstance(unit.loaded, Unknown):
        return ()
    given = inherited | dict(unit.loaded.env).keys()
    return tuple(sorted(undeclared(desired, frozenset(name for name, _ in unit.main.env)) - given))
