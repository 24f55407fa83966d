"""What a person declares about one host. Pure text rules; how it is reached lives in `daemon.ssh`."""

from __future__ import annotations

from typing import Annotated, Literal, NewType

from pydantic import Field, model_validator

from daemon.domain.text import AbsPath, Model, ObjectName, Port, ShortText, UnitName, UserName

HostName = NewType("HostName", str)

StrayLimit = Literal["report", "orphans", "any"]
Mode = Literal["observe", "enforce", "cordoned"]
Address = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$")]


class Ssh(Model):
    """How SSH reaches the host; `host_key` is one `TYPE BASE64` line, else the daemon's known_hosts file decides."""

    address: Address
    port: Port = 22
    user: UserName = "root"
    host_key: ShortText | None = Field(default=None, max_length=2048, pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$")
    jump: ObjectName | None = None


class Via(Model):
    """A system container entered from the machine that SSH reaches."""

    proxmox_container: Annotated[int, Field(ge=1, le=999_999_999)]


class Gpus(Model):
    """GPUs the host should have. `product` as nvidia-smi names it."""

    count: Annotated[int, Field(ge=0, le=64)]
    product: ShortText | None = None


class Strays(Model):
    """How far clearing may go on this host at most; a spec may ask for less.

    report: nobody is signalled. orphans: proven ones, and likely ones where the host is exclusive or an instance of
    ours held that GPU or port since boot. any: likely ones everywhere. What is foreign is signalled under none of them.

    `budget` bounds how many processes are signalled in an hour. An engine of eight GPUs is about 20 processes: 64 is
    three of them a whole hour long, and far below what a wrong rule would reach on a busy host.
    """

    limit: StrayLimit = "orphans"
    budget: Annotated[int, Field(ge=1, le=10_000)] = 64


class Protect(Model):
    """Processes never signalled: exactly one of a unit, a user, a command or a cgroup.

    A command is the name of the program, or of the script that an interpreter runs. A cgroup is a path as
    `/proc/PID/cgroup` shows it, and everything below it.
    """

    unit: UnitName | None = None
    user: UserName | None = None
    command: ShortText | None = None
    cgroup: AbsPath | None = None

    @model_validator(mode="after")
    def _one(self) -> Protect:
        if sum(x is not None for x in (self.unit, self.user, self.command, self.cgroup)) != 1:
            raise ValueError("give exactly one of unit, user, command, cgroup")
        if self.cgroup == "/":
            raise ValueError("the cgroup / holds every process; set strays: {limit: report} instead")
        return self


class HostSpec(Model):
    """One machine, or one system container with its own systemd: by `ssh` or `local`."""

    ssh: Ssh | None = None
    local: bool = False
    sudo: bool | None = None  # None: exactly when the SSH user is not root
    via: Via | None = None
    gpus: Gpus | None = None
    exclusive: bool = False
    strays: Strays = Strays()
    protect: tuple[Protect, ...] = Field(default=(), max_length=64, strict=False)
    mode: Mode = "observe"
    period: Annotated[str, Field(pattern=r"^\d{1,5}(ms|s|m)$")] = "10s"

    @model_validator(mode="after")
    def _one_road(self) -> HostSpec:
        if (self.ssh is None) == (not self.local):
            raise ValueError("give exactly one of ssh or local: true")
        if self.local and self.via is not None:
            raise ValueError("via needs ssh: a local container is not supported")
        return self

    @property
    def uses_sudo(self) -> bool:
        """Whether every command on the host goes through `sudo -n`."""
        if self.sudo is not None:
            return self.sudo
        return self.ssh is not None and self.ssh.user != "root"
