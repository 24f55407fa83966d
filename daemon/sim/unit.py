"""One unit of a simulated systemd, as it stands: what is loaded, its state, its stamps, its job."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemon.sim.agenda import Timer
from daemon.sim.definition import Definition
from daemon.sim.processes import SimProcess


@dataclass(slots=True, eq=False)
class SimUnit:
    """Stamps are microseconds of the boot clock, 0 for never. `job` is (kind, number) while one waits or runs.

    `queued`: that job is a start that waits for the end of what runs now. `exec_told`: the command's own figures are
    known, which a daemon-reload makes systemd forget.
    `forbidden`: a stop was asked for, so nothing restarts it. `signature` is what its files were when they were loaded.
    """

    name: str
    load_state: str = "not-found"
    definition: Definition = field(default_factory=lambda: Definition(""))
    signature: tuple[object, ...] = ()
    active: str = "inactive"
    sub: str = "dead"
    result: str = "success"
    main: SimProcess | None = None
    control: SimProcess | None = None
    step: int = 0
    invocation: str = ""
    restarts: int = 0
    flush: bool = True
    forbidden: bool = False
    exec_pid: int = 0
    exec_told: bool = False
    exec_code: int = 0
    exec_status: int = 0
    exec_start_us: int = 0
    exec_start_wall_us: int = 0
    exec_exit_us: int = 0
    exec_exit_wall_us: int = 0
    inactive_exit_us: int = 0
    active_enter_us: int = 0
    inactive_enter_us: int = 0
    state_change_us: int = 0
    job: tuple[str, int] | None = None
    queued: bool = False
    starts: list[float] = field(default_factory=list)
    timer: Timer | None = None

    @property
    def down(self) -> bool:
        return self.active in ("inactive", "failed")

    @property
    def group(self) -> str:
        return f"/system.slice/{self.name}"

    def set_timer(self, timer: Timer | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer
