"""The shape of a recording, as documented: one look, section by section, by a tool or by hand.

Checked by pydantic where it comes in, so that what is wrong has a path. A section is plain text (the tool's output), or
an object with its exit status beside it; `meta`, `processes`, `units`, `sockets` and `sessions` may be written in a
simple form of their own. What is not in a recording is not known.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, Discriminator, Field, Tag, model_validator

from daemon.domain.text import Model

FORMAT = "stoker/v1"
MAX_SECTIONS = 100
MAX_ROWS = 20_000


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair; give the bytes as base64") from None
    return text


def _one_word(text: str) -> str:
    if any(char in text for char in " \n\r\0"):
        raise ValueError("must be one word")
    return text


def _address(text: str) -> str:
    """As `ss` prints it: `*` is every address."""
    if text not in ("*", "any"):
        ipaddress.ip_address(text.strip("[]"))
    return text


Output = Annotated[str, AfterValidator(_encodable)]
Word = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_encodable), AfterValidator(_one_word)]
Pid = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]
Age = Annotated[
    Seconds | None,
    Field(default=None, validation_alias=AliasChoices("ageS", "age_s", "etimes"), serialization_alias="ageS"),
]


class SectionForm(Model):
    """One tool's answer. `complete`: its end mark came. Bytes that are no UTF-8 are given as `base64`."""

    command: str = ""
    output: Output | None = None
    base64: str | None = None
    exit_status: Annotated[int, Field(ge=0, le=255)] = 0
    took_ms: Count | None = None
    complete: bool = True

    @model_validator(mode="after")
    def _one_output(self) -> SectionForm:
        if self.output is not None and self.base64 is not None:
            raise ValueError("give output or base64, not both")
        return self


class MetaForm(Model):
    """The host at the time of the look; what is left out is made up, the same each time."""

    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")] | None = None
    machine_id: Word | None = None
    container: Word = "none"
    systemd: Count = 252
    uptime_s: Seconds | None = None


class ProcessForm(Model):
    """One process. `env` not given: its environment could not be read. `nvidia` not given: the cards `apps` says."""

    pid: Pid
    ppid: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    pgrp: Pid | None = None
    session: Pid | None = None
    state: Annotated[str, Field(pattern=r"^[A-Za-z]")] = "S"
    user: Word | None = None
    uid: Count | None = None
    comm: Annotated[str, Field(max_length=64), AfterValidator(_encodable)] | None = None
    command: Output | None = None
    argv: list[Output] | None = None
    cgroup: Annotated[str, Field(pattern=r"^/[^\n\x00]*$")] | None = None
    start_ticks: Count | None = None
    age_s: Age
    env: dict[Word, Output] | None = None
    nvidia: bool | list[Annotated[int, Field(ge=0, le=255)]] | None = None
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default_factory=list)
    serves: bool | None = None

    @model_validator(mode="after")
    def _whole(self) -> ProcessForm:
        if self.user is None and self.uid is None:
            raise ValueError("user or uid is needed")
        if (self.start_ticks is None) == (self.age_s is None):
            raise ValueError("give exactly one of ageS (seconds since it started) and startTicks")
        if self.command is not None and self.argv is not None:
            raise ValueError("give command or argv, not both")
        return self


class UnitForm(Model):
    """One unit. `ageS`: seconds since it went into this state. `asDeclared`: its file and launch are the spec's."""

    name: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9:_.@\\-]+\.(service|scope|slice|socket)$")]
    active: Word = "inactive"
    sub: Word | None = None
    load: Word | None = None
    result: Word = "success"
    enabled: bool | None = None
    main_pid: Count = 0
    control_pid: Count = 0
    invocation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    restarts: Count = 0
    exec_main_code: Count = 0
    exec_main_status: Count = 0
    age_s: Age
    cgroup: Annotated[str, Field(pattern=r"^/[^\n\x00]*$")] | None = None
    stop_timeout: Annotated[str, Field(pattern=r"^[0-9a-z. ]{1,40}$")] = "1min"
    need_daemon_reload: bool = False
    file: Output | None = None
    argv: list[Output] | None = None
    env: dict[Word, Output] = Field(default_factory=dict)
    user: Word | None = None
    as_declared: bool = False


class SocketForm(Model):
    """One listening TCP socket; no pids: its owner could not be seen."""

    port: Annotated[int, Field(ge=1, le=65535)]
    address: Annotated[Word, AfterValidator(_address)] = "0.0.0.0"  # noqa: S104 - what is observed, not what is bound
    pids: list[Pid] = Field(default_factory=list)


class SessionForm(Model):
    """A login session and its leader's pid, 0 when the leader is gone."""

    id: Word
    leader: Count = 0


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "list"
    if not isinstance(value, dict):
        return None
    return "section" if set(value) & {"output", "base64", "exitStatus", "command", "tookMs", "complete"} else "object"


_Text = Annotated[Output, Tag("text")]
_Section = Annotated[SectionForm, Tag("section")]
_Bare = Annotated[SectionForm, Tag("object")]
_Shape = Discriminator(
    _shape, custom_error_type="section_shape", custom_error_message="must be text or an object with output"
)
Plain = Annotated[_Text | _Section | _Bare, _Shape]
Meta = Annotated[_Text | _Section | Annotated[MetaForm, Tag("object")], _Shape]
Processes = Annotated[
    _Text | _Section | _Bare | Annotated[list[ProcessForm], Tag("list"), Field(max_length=MAX_ROWS)], _Shape
]
Units = Annotated[_Text | _Section | _Bare | Annotated[list[UnitForm], Tag("list"), Field(max_length=MAX_ROWS)], _Shape]
Sockets = Annotated[
    _Text | _Section | _Bare | Annotated[list[SocketForm], Tag("list"), Field(max_length=MAX_ROWS)], _Shape
]
Sessions = Annotated[
    _Text | _Section | _Bare | Annotated[list[SessionForm], Tag("list"), Field(max_length=MAX_ROWS)], _Shape
]


class SectionsForm(Model):
    """The sections by the helper's names; one that this version does not know is kept and not read."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Plain]

    meta: Meta | None = None
    processes: Processes | None = None
    units: Units | None = None
    sockets: Sockets | None = None
    sessions: Sessions | None = None


class InstanceForm(Model):
    """What the store remembers of one instance."""

    spec: Word
    role: Word = "server"
    unit: Word
    path: Word
    gpus: list[Annotated[tuple[int, str], Field(strict=False)]] = Field(default_factory=list)
    written_sha256: str = ""
    written_launch: str = ""
    started_launch: str = ""
    stopped: bool = False
    ready_invocation: str = ""
    inherited: list[str] | None = None


class SignalledForm(Model):
    """A process that was signalled before, and how long before the look."""

    pid: Pid
    term_ago_s: Seconds | None = None
    kill_ago_s: Seconds | None = None


class KnowsForm(Model):
    """What the daemon knew beside the look. `held`: what an instance of ours had since boot, as GPU UUIDs, `gpu:N` and
    `port:N`."""

    store: str = ""
    manifests: list[dict[str, Any]] = Field(default_factory=list)
    instances: list[InstanceForm] = Field(default_factory=list)
    held: list[str] = Field(default_factory=list)
    serves: dict[str, bool] = Field(default_factory=dict)
    signalled: list[SignalledForm] = Field(default_factory=list)
    gpus: list[str] = Field(default_factory=list)


class RecordingForm(Model):
    """One look, whole or in part. `complete` false: its end mark never came, so that nothing of it counts.

    `helper` is the version of the helper that answered; without one it was written by hand.
    """

    recording: Literal["stoker/v1"]
    host: Annotated[str, Field(max_length=253), AfterValidator(_encodable)] = "recorded"
    taken_at: str | None = None
    taken_by: str | None = None
    helper: Count | None = None
    took_ms: Count | None = None
    complete: bool = True
    exit_status: Annotated[int, Field(ge=0, le=255)] = 0
    redacted: Count = 0
    note: str | None = None
    sections: SectionsForm = SectionsForm()
    knows: KnowsForm = KnowsForm()
