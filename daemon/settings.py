"""How this daemon runs: settings from the environment and a file; and the only places that read a clock.

Called by `api.serve` and the command line; everything below takes settings, times and clocks as arguments. An
environment variable STOKER_NAME outranks `name:` in the YAML file, which outranks the default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from daemon.domain.errors import StokerError
from daemon.domain.text import duration_s

PREFIX = "STOKER_"
MAX_FILE_BYTES = 256 * 1024


class SettingsError(StokerError):
    """The settings are wrong; nothing was started."""


def wall_clock() -> datetime:
    """Now in UTC: for what is stored and shown, never for measuring."""
    return datetime.now(UTC)  # noqa: TID251 - the one place


def monotonic() -> float:
    """Seconds on a clock that never jumps: for ages and deadlines within this run."""
    return time.monotonic()


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a duration is seconds, or text such as 500ms, 10s, 5m")
    if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
        return duration_s(value)
    return value


def _absolute(value: object) -> object:
    return Path(value).expanduser().absolute() if isinstance(value, str | Path) and str(value) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=86_400, allow_inf_nan=False)]
FilePath = Annotated[Path, BeforeValidator(_absolute)]


def default_data() -> Path:
    """The data folder when nobody names one. Not /var/lib/stoker: a managed host keeps its helper there."""
    return Path("/var/lib/stoker-server") if os.geteuid() == 0 else Path.home() / ".local/share/stoker"


class Settings(BaseModel):
    """Everything about one daemon that its operator chooses. Times in seconds, also given as 500ms, 10s, 5m."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data: FilePath = Field(default_factory=default_data)
    listen_host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8460  # 0: any free one

    ssh_identity: FilePath | None = None  # None: only the agent's keys; no file is read unasked
    ssh_known_hosts: FilePath = Field(default_factory=lambda: Path.home() / ".ssh/known_hosts")
    ssh_agent: bool = False
    accept_unknown_host_keys: bool = False
    connect_timeout_s: Seconds = 10.0
    login_timeout_s: Seconds = 15.0  # asyncssh counts it from the end of the TCP connect
    helper_auto_install: bool = True

    workers: Annotated[int, Field(ge=1, le=1024)] = 16
    reconcile_limit_s: Seconds = 10.0
    look_timeout_s: Seconds = 20.0
    resync_period_s: Seconds = 60.0
    unwatched_period_s: Seconds = 5.0  # the longest period of a host whose systemd is not heard
    watch_answer_s: Seconds = 10.0  # for a socket to open, and for each answer of a bus
    watch_ping_s: Seconds = 30.0  # of silence, before a bus is asked whether it lives
    watch_spacing_s: Seconds = 0.25  # between two hints of one host
    watch_retry_s: Seconds = 300.0  # the longest back-off
    resync_jitter: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of the period, on either side

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _no_blank_paths(self) -> Settings:
        # An empty variable must not become the folder the daemon was started in.
        for name in ("data", "ssh_identity", "ssh_known_hosts"):
            path = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name} is empty")
        return self

    @property
    def store_path(self) -> Path:
        """The store's file."""
        return self.data / "stoker.db"


def load_settings(environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """Settings from `environ`, and from `file` or else the file STOKER_CONFIG names; both are optional.

    Variables of other names (STOKER_TOKEN, …) are not ours and are left alone. Blocks: called before the loop starts.

    Raises:
        SettingsError: a wrong or unknown setting, or an unreadable file; says which and what to do.
    """
    config = file or (Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None)
    values = {} if config is None else _file_values(config)
    for name in Settings.model_fields:
        if (text := environ.get(f"{PREFIX}{name.upper()}")) is not None:
            values[name] = text
    try:
        return Settings(**values)
    except ValidationError as err:
        raise SettingsError("; ".join(_told(detail["loc"], detail["msg"], config) for detail in err.errors())) from err


def _told(where: tuple[int | str, ...], message: str, config: Path | None) -> str:
    name = ".".join(map(str, where))
    if name not in Settings.model_fields:
        return f"{config}: {name or 'settings'}: {message}"
    return f"{name}: {message} (set {PREFIX}{name.upper()}, or {name}: in the settings file)"


def _file_values(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise SettingsError(f"{path} has more than {MAX_FILE_BYTES} bytes: it is no settings file")
        values = yaml.safe_load(text)
    except OSError as err:
        raise SettingsError(f"{path}: {err.strerror}") from err
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise SettingsError(f"{path} is not YAML: {err}") from err
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{path} must hold `name: value` lines")
    return values
