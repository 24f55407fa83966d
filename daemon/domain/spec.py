"""What a person declares about serving one model. Text rules only; rules between objects live in `planner.admission`.

A spec has either one server (role `server`) or named roles that override parts of it; `role_view` gives the effective
declaration of one role, which is what engines, planner and readiness work with.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NewType

from pydantic import Field, model_validator

from daemon.domain.host import StrayLimit
from daemon.domain.text import (
    AbsPath,
    Duration,
    EnvName,
    Model,
    ObjectName,
    Port,
    Positive,
    ShortText,
    Text,
    Title,
    UnitName,
    UserName,
)

SpecName = NewType("SpecName", str)
Role = Literal["server", "prefill", "decode", "router"]
ROLES: tuple[Role, ...] = ("server", "prefill", "decode", "router")

ArgName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
ArgValue = Text | int | float | bool | Annotated[tuple[Text, ...], Field(strict=False, max_length=64)]
Args = Annotated[dict[ArgName, ArgValue], Field(max_length=256)]
Env = Annotated[dict[EnvName, Text], Field(max_length=256)]


class Engine(Model):
    """`python` runs sglang or vllm; `command` is the whole argv of a custom engine."""

    name: Literal["sglang", "vllm", "custom"]
    python: AbsPath | None = None
    version: Annotated[str, Field(max_length=32, pattern=r"^\d+(\.\d+)*([A-Za-z0-9.+-]*)$")] | None = None
    command: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Engine:
        if self.name == "custom" and (self.command is None or self.python is not None):
            raise ValueError("engine custom takes command (its whole argv) and no python")
        if self.name != "custom" and (self.python is None or self.command is not None):
            raise ValueError(f"engine {self.name} takes python (the interpreter it is installed for) and no command")
        return self


class ModelSource(Model):
    """The weights. `path` is a folder on the host or a hub id; `served_name` defaults to `path`."""

    path: ShortText = Field(max_length=1024)
    served_name: ShortText | None = None
    trust_remote_code: bool = False


class Parallelism(Model):
    """Sizes of the engine's own parallelism on one host."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    data: Annotated[int, Field(ge=1, le=64)] = 1
    expert: Annotated[int, Field(ge=1, le=256)] | None = None


class Speculative(Model):
    """Speculative decoding in the engine's own terms; `algorithm` is passed on as written."""

    algorithm: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_]+$")]
    draft_model: ShortText | None = Field(default=None, max_length=1024)
    num_steps: Positive | None = None
    eagle_topk: Positive | None = None
    num_draft_tokens: Positive | None = None
    block_size: Positive | None = None
    draft_window: Positive | None = None


class Placement(Model):
    """Where it runs: GPU indexes as nvidia-smi numbers them at first placement; then their UUIDs are kept."""

    host: ObjectName
    gpus: Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(strict=False, max_length=64)] = ()


class Startup(Model):
    """Bounds of a start: silence, and the whole."""

    no_progress: Duration = "10m"
    timeout: Duration = "60m"


class Stop(Model):
    """How long systemd waits after TERM before KILL."""

    timeout: Duration = "60s"


class Readiness(Model):
    """The generation that proves readiness. `path` only for kind http."""

    kind: Literal["completions", "chat", "embeddings", "score", "http"] = "completions"
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 32
    period: Duration = "60s"
    timeout: Duration = "60s"
    path: Annotated[str, Field(max_length=256, pattern=r"^/[A-Za-z0-9/_.-]*$")] | None = None

    @model_validator(mode="after")
    def _path(self) -> Readiness:
        if (self.kind == "http") != (self.path is not None):
            raise ValueError("path belongs to kind http and only there")
        return self


class Restart(Model):
    """systemd's own start limit for the unit, and Stoker's budget for corrections of what serves."""

    start_limit_burst: Annotated[int, Field(ge=1, le=1000)] = 10
    start_limit_interval: Duration = "3h"
    delay: Duration = "5s"
    budget: Annotated[int, Field(ge=1, le=1000)] = 5  # corrections an hour, then one every 30 min


class SpecStrays(Model):
    """What this spec asks to be cleared for its start, bounded by the host's limit: see `Strays` there for the words.

    `titles` are beginnings of the command lines of this engine's processes, for an engine that Stoker does not know.
    """

    kill: StrayLimit = "orphans"
    grace: Duration = "20s"
    titles: Annotated[tuple[Title, ...], Field(strict=False, max_length=16)] = ()


class RoleOverride(Model):
    """What one role declares over the spec: each field given replaces the spec's."""

    placement: Placement | None = None
    port: Port | None = None
    bootstrap_port: Port | None = None
    listen: ShortText | None = None
    unit: UnitName | None = None
    parallelism: Parallelism | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    args: Args = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)


class ServingSpec(Model):
    """What should serve. Either `placement` and `port` here, or `roles` that each bring theirs."""

    engine: Engine
    unit: UnitName | None = None
    user: UserName | None = None
    working_directory: AbsPath | None = None
    model: ModelSource | None = None
    parallelism: Parallelism = Parallelism()
    context_length: Positive | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    max_running_requests: Positive | None = None
    speculative: Speculative | None = None
    args: Args = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)
    placement: Placement | None = None
    listen: ShortText = "0.0.0.0"  # noqa: S104 - SGLang's own default is loopback, no router would reach it
    port: Port | None = None
    metrics: bool = True
    startup: Startup = Startup()
    stop: Stop = Stop()
    readiness: Readiness = Readiness()
    restart: Restart = Restart()
    strays: SpecStrays = SpecStrays()
    rollback: Literal["auto", "never"] = "auto"
    run: bool = True
    suspend: bool = False
    roles: dict[Literal["prefill", "decode", "router"], RoleOverride] | None = None

    @model_validator(mode="after")
    def _complete(self) -> ServingSpec:
        if self.roles is None and (self.placement is None or self.port is None):
            raise ValueError("placement and port are needed (or roles, each with its own)")
        if self.roles is not None and not self.roles:
            raise ValueError("roles must name at least one role")
        if self.engine.name != "custom" and self.model is None:
            raise ValueError(f"engine {self.engine.name} needs model")
        if self.model is None and self.readiness.kind != "http":
            raise ValueError("without model readiness must be of kind http")
        return self

    def role_names(self) -> tuple[Role, ...]:
        """The roles this spec has, in start order."""
        if self.roles is None:
            return ("server",)
        return tuple(role for role in ROLES if role in self.roles)

    def role_view(self, role: Role) -> ServingSpec:
        """The effective declaration of one role: overrides applied, `roles` kept for a router to find its workers.

        The result always has `placement` and `port` when the spec was admitted.
        """
        if role == "server" or self.roles is None:
            return self
        over = self.roles[role]
        changes: dict[str, Any] = {
            key: value
            for key in ("placement", "port", "listen", "unit", "parallelism", "memory_fraction")
            if (value := getattr(over, key)) is not None
        }
        changes["args"] = {**({} if role == "router" else self.args), **over.args}
        changes["env"] = {**self.env, **over.env}
        return self.model_copy(update=changes)

    @property
    def served_name(self) -> str | None:
        """The name under which the engine answers, None for an engine without a model."""
        return None if self.model is None else self.model.served_name or self.model.path
