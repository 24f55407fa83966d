"""Conditions, reasons and drift: what Stoker says about a host, a spec and an instance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Truth = Literal["True", "False", "Unknown"]
Layer = Literal["file", "loaded", "running", "effective", "placement", "inventory"]

HOST_CONDITIONS = ("Reachable", "Observed", "GPUsReady", "Clean", "Degraded")
SPEC_CONDITIONS = ("Ready", "Available", "Loaded", "Progressing", "Drifted", "Stalled", "Degraded")


class Reason(StrEnum):
    """Every reason Stoker gives, one enum. Spelled as in the field cases where those name one."""

    # a declared object: made, changed, gone
    CREATED = "Created"
    CONFIGURED = "Configured"
    DELETED = "Deleted"
    # all is well
    OK = "OK"
    GENERATED = "Generated"
    CONVERGED = "Converged"
    STOPPED = "Stopped"
    SUSPENDED = "Suspended"
    # the road to a host
    UNREACHABLE = "Unreachable"
    CONTAINER_UNREACHABLE = "ContainerUnreachable"
    TRANSPORT_LOST = "TransportLost"
    CONNECT_TIMEOUT = "ConnectTimeout"
    HOST_KEY_UNKNOWN = "HostKeyUnknown"
    JUMP_HOST_KEY_UNKNOWN = "JumpHostKeyUnknown"
    HOST_KEY_CHANGED = "HostKeyChanged"
    AUTH_FAILED = "AuthFailed"
    SSH_BANNER_TIMEOUT = "SSHBannerTimeout"
    BANNER_NOT_UTF8 = "BannerNotUTF8"
    SUDO_DENIED = "SudoDenied"
    UNSUPPORTED_LOGIN_SHELL = "UnsupportedLoginShell"
    LOOK_INCOMPLETE = "LookIncomplete"
    HELPER_OUTDATED = "HelperOutdated"
    HELPER_MISSING = "HelperMissing"
    WATCHED = "Watched"
    WATCH_UNAVAILABLE = "WatchUnavailable"
    NOT_OBSERVED_YET = "NotObservedYet"
    NOT_RECORDED = "NotRecorded"
    OBSERVATION_OLD = "ObservationOld"
    # tools and sections
    TOOL_MISSING = "ToolMissing"
    TOOL_FAILED = "ToolFailed"
    TOOL_TIMED_OUT = "ToolTimedOut"
    UNPARSABLE = "Unparsable"
    TRUNCATED = "Truncated"
    BUS_UNAVAILABLE = "BusUnavailable"
    LOGS_UNAVAILABLE = "LogsUnavailable"
    DISK_FULL = "DiskFull"
    INODES_FULL = "InodesFull"
    JOURNAL_FULL = "JournalFull"
    SYSTEMD_TOO_OLD = "SystemdTooOld"
    NOT_SYSTEMD = "NotSystemd"
    # GPUs
    DRIVER_LIBRARY_MISMATCH = "DriverLibraryMismatch"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    GPU_LOST = "GPULost"
    GPU_NEEDS_RESET = "GPUNeedsReset"
    DEVICE_HANDLE_ERROR = "DeviceHandleError"
    INFOROM_CORRUPTED = "InfoROMCorrupted"
    GPU_XID = "GPUXid"
    ECC_UNCORRECTED = "ECCUncorrected"
    ROW_REMAP_PENDING = "RowRemapPending"
    ROW_REMAP_FAILED = "RowRemapFailed"
    NVLINK_ERROR = "NVLinkError"
    NVSWITCH_ERROR = "NVSwitchError"
    GPU_MISSING = "GPUMissing"
    GPU_BINDING_CHANGED = "GPUBindingChanged"
    GPU_INVENTORY_CHANGED = "GPUInventoryChanged"
    # who holds what
    CLEAN = "Clean"
    MANAGED = "Managed"
    CLEARING = "Clearing"
    ORPHAN_WORKERS = "OrphanWorkers"
    FOREIGN_HOLDER = "ForeignHolder"
    OWNERSHIP_UNKNOWN = "OwnershipUnknown"
    GHOST_GPU_PROCESS = "GhostGPUProcess"
    UNATTRIBUTED_GPU_MEMORY = "UnattributedGPUMemory"
    UNKILLABLE_PROCESS = "UnkillableProcess"
    DEFUNCT_PROCESS = "DefunctProcess"
    STRAY_UNDER_MPS = "StrayUnderMPS"
    KILL_BUDGET_EXHAUSTED = "KillBudgetExhausted"
    PORT_IN_USE = "PortInUse"
    WAITING_FOR_MEMORY = "WaitingForMemory"
    WAITING_IN_GATE = "WaitingInGate"
    STARTED_ON_UNCLEAN_MEMORY = "StartedOnUncleanMemory"
    PROTECTED = "Protected"
    REPORT_ONLY = "ReportOnly"
    # a start, and readiness
    STARTING = "Starting"
    PROGRESSING = "Progressing"
    NOT_PLACED = "NotPlaced"
    HOST_NOT_FOUND = "HostNotFound"
    PROBE_PENDING = "ProbePending"
    GENERATION_TIMEOUT = "GenerationTimeout"
    GENERATION_FAILED = "GenerationFailed"
    PROBE_REFUSED = "ProbeRefused"
    PROBE_UNAUTHORIZED = "ProbeUnauthorized"
    WRONG_MODEL = "WrongModel"
    CONNECTION_REFUSED = "ConnectionRefused"
    STALE_PROCESS_SERVING = "StaleProcessServing"
    ARGV_MISMATCH = "ArgvMismatch"
    FIRST_REQUEST_CRASH = "FirstRequestCrash"
    # units
    UNIT_NOT_FOUND = "UnitNotFound"
    UNIT_MASKED = "UnitMasked"
    UNIT_BAD_SETTING = "UnitBadSetting"
    UNIT_DRIFT = "UnitDrift"
    UNIT_FAILED = "UnitFailed"
    UNIT_RESTARTING = "UnitRestarting"
    UNIT_INACTIVE = "UnitInactive"
    UNIT_STOPPING = "UnitStopping"
    STOPPED_BY_HAND = "StoppedByHand"
    START_LIMIT_HIT = "StartLimitHit"
    INVALID_LAUNCH_ARGS = "InvalidLaunchArgs"
    LAUNCH_CHANGED = "LaunchChanged"
    # failure classes of an engine's log
    OUT_OF_GPU_MEMORY = "OutOfGPUMemory"
    INVALID_PARALLELISM = "InvalidParallelism"
    INVALID_SPECULATIVE_CONFIG = "InvalidSpeculativeConfig"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    MEMORY_HELD_BY_OTHERS = "MemoryHeldByOthers"
    UNSUPPORTED_ATTENTION_BACKEND = "UnsupportedAttentionBackend"
    MODEL_NOT_FOUND = "ModelNotFound"
    SHARED_MEMORY_FULL = "SharedMemoryFull"
    SHARED_MEMORY_LEFT = "SharedMemoryLeft"
    HOST_OOM = "HostOOM"
    KILLED_BY_SIGNAL = "KilledBySignal"
    ENGINE_CRASHED = "EngineCrashed"
    MODULE_MISSING = "ModuleMissing"
    EXITED = "Exited"
    UNCLASSIFIED = "Unclassified"
    # who may act
    OBSERVE_ONLY = "ObserveOnly"
    PAUSED = "Paused"
    HELD = "Held"
    CORDONED = "Cordoned"
    FENCED_OFF = "FencedOff"
    GROUND_CHANGED = "GroundChanged"
    UNCLAIMED = "Unclaimed"
    HOST_IDENTITY_CHANGED = "HostIdentityChanged"
    HOST_IDENTITY_TAKEN = "HostIdentityTaken"
    HOST_UNREACHABLE = "HostUnreachable"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    DRIFT_CONTESTED = "DriftContested"
    TERMINATING = "Terminating"
    ABANDONED = "Abandoned"
    RECONCILE_FAILED = "ReconcileFailed"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as computed now; the store adds the time of its last transition."""

    type: str
    status: Truth
    reason: Reason
    message: str = ""
    observed_generation: int = 0


@dataclass(frozen=True, slots=True)
class Drift:
    """One field of one instance that differs, with its layer; values are bounded text for people."""

    unit: str
    layer: Layer
    field: str
    declared: str
    observed: str
    launch: bool = False

    @property
    def key(self) -> str:
        """What comes back when this comes back: layer and field, without the values."""
        return f"{self.layer} {self.field}"


Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened or was refused, with its evidence (command, exit status, last lines; redacted)."""

    reason: Reason
    message: str
    kind: Literal["Host", "ServingSpec"]
    name: str
    severity: Severity = "Normal"
    evidence: str = ""
    action: str = ""
    result: str = ""
