"""How a service of systemd 252 lives: its gate, its start, its end, its restarts. Called by `units` alone.

Every rule here was looked up on the real one: states, results, stamps and the journal's own lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from daemon.sim.definition import Command
from daemon.sim.disk import GATE
from daemon.sim.gate import Gate
from daemon.sim.machine import Machine
from daemon.sim.processes import EXITED, KILLED, SIGNALS, SimProcess
from daemon.sim.unit import SimUnit

_CLEAN_SIGNALS = (1, 2, 13, 15)
_STATUS = {1: "FAILURE", 2: "INVALIDARGUMENT", 203: "EXEC", 217: "USER"}
_NUMBERS = {number: name for name, number in SIGNALS.items()}
STEP_US = 150
EXEC_S = 0.045  # what a gate that finds nothing takes
ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
FOLDERS = ("/opt/", "/usr/", "/bin/", "/sbin/", "/srv/")


class Launches(Protocol):
    """Brings a main process to life after it was executed."""

    def __call__(self, unit: SimUnit, process: SimProcess) -> None: ...


class Service:
    """The moves of one machine's services. `changed` is told a unit's name at every change of its state."""

    def __init__(
        self, machine: Machine, launch: Launches, changed: Callable[[str], None], live: Callable[[str], bool]
    ) -> None:
        self.machine, self.launch, self.changed, self.live = machine, launch, changed, live
        self._stamped = 0
        self.environment = dict(ENVIRONMENT)
        self.absent: set[str] = set()

    def forget_environment(self) -> None:
        """What a boot does to `systemctl set-environment`, and to the clock of the stamps."""
        self.environment, self._stamped = dict(ENVIRONMENT), 0

    # ---- states ----

    def enter(self, unit: SimUnit, active: str, sub: str) -> None:
        was_down, was = unit.down, unit.active
        unit.active, unit.sub = active, sub
        now = self._stamp()
        unit.state_change_us = now
        if was_down and not unit.down:
            unit.inactive_exit_us = now
        if unit.down and not was_down:
            unit.inactive_enter_us = now
        if active == "active" and was != "active":
            unit.active_enter_us = now
        self.changed(unit.name)

    def _stamp(self) -> int:
        """Now on the boot clock, later than every stamp before: what follows at once still takes its time."""
        self._stamped = max(self.machine.mono_us(), self._stamped + STEP_US)
        return self._stamped

    def say(self, unit: SimUnit, text: str) -> None:
        self.machine.say(unit.name, unit.invocation, text)

    # ---- start ----

    def begin(self, unit: SimUnit, *, auto: bool = False) -> None:
        """A start: a new invocation, the gate, then the command. Refused when the start limit is hit.

        One that waited for an end meanwhile may find its unit masked or gone: nothing starts then.
        """
        unit.set_timer(None)
        if unit.load_state != "loaded":
            unit.job, unit.queued = None, False
            return
        if self._limited(unit):
            self.say(unit, f"{unit.name}: Start request repeated too quickly.")
            unit.result, unit.forbidden = "start-limit-hit", True
            self.say(unit, f"{unit.name}: Failed with result 'start-limit-hit'.")
            self.say(unit, f"Failed to start {unit.name}.")
            unit.job, unit.queued = None, False
            self.enter(unit, "failed", "failed")
            return
        if unit.flush and not auto:
            unit.restarts = 0
        unit.invocation, unit.result, unit.step = self.machine.hexadecimal(), "success", 0
        unit.flush = unit.forbidden = unit.queued = False
        unit.exec_pid = unit.exec_code = unit.exec_status = unit.exec_start_us = unit.exec_start_wall_us = 0
        unit.exec_exit_us = unit.exec_exit_wall_us = 0
        self._disown(unit)
        self.say(unit, f"Starting {unit.name}...")
        self._next_step(unit)

    def _limited(self, unit: SimUnit) -> bool:
        definition, now = unit.definition, self.machine.clock()
        unit.starts = [at for at in unit.starts if now - at < definition.limit_interval_s]
        if (
            definition.limit_burst > 0
            and definition.limit_interval_s > 0
            and len(unit.starts) >= definition.limit_burst
        ):
            return True
        unit.starts.append(now)
        return False

    def _disown(self, unit: SimUnit) -> None:
        """What is still in the cgroup of an earlier start is a leftover from now on."""
        for process in self.machine.processes.in_group(unit.group):
            if process.whose == "instance":
                process.whose, process.why = "leftover", "of an earlier start of its unit"

    def _next_step(self, unit: SimUnit) -> None:
        commands = unit.definition.before
        if unit.step >= len(commands):
            self._execute(unit)
            return
        command = commands[unit.step]
        unit.step += 1
        gate = any(GATE in word for word in command.argv) and GATE in self.machine.disk.files
        argv = ("/bin/sh", GATE, unit.name) if gate else command.argv
        control = self._spawn(unit, argv, "its control process", {}, uid=0, exe="/usr/bin/dash")
        unit.control = control
        control.on_end = lambda code, status: self._control_ended(unit, code, status)
        if unit.sub != "start-pre":
            self.enter(unit, "activating", "start-pre")
        if gate:
            Gate(self.machine, control, unit, self.live).begin(EXEC_S)
        else:
            self.machine.after(0.005, lambda: self.machine.processes.end(control, EXITED, 0))

    def _control_ended(self, unit: SimUnit, code: int, status: int) -> None:
        unit.control = None
        if code == EXITED and status == 0 and unit.sub == "start-pre":
            self._next_step(unit)
            return
        if not (code == EXITED and status == 0):
            self.say(unit, f"{unit.name}: Control process exited, {_ended(code, status)}")
            unit.result = "exit-code" if code == EXITED else "signal"
        self._kill_rest(unit)

    def _spawn(
        self, unit: SimUnit, argv: tuple[str, ...], why: str, environ: Mapping[str, str], *, uid: int, exe: str
    ) -> SimProcess:
        pairs = {**self.environment, **environ, **dict(e.split("=", 1) for e in unit.definition.environment)}
        pairs = {name: value for name, value in pairs.items() if name not in unit.definition.unset}
        pairs |= {"INVOCATION_ID": unit.invocation, "SYSTEMD_EXEC_PID": "0"}
        process = self.machine.processes.spawn(
            argv, unit.group, "instance", f"{why} of {unit.name}", uid=uid, exe=exe, environ=tuple(pairs.items()),
            cwd=unit.definition.working_directory or "/",
        )  # fmt: skip
        if exe == "/usr/bin/dash":
            process.comm = argv[1].rpartition("/")[2][:15] if len(argv) > 1 and argv[1].startswith("/") else "sh"
        return process

    def _execute(self, unit: SimUnit) -> None:
        command = unit.definition.commands[0]
        environ = {**self.environment, **dict(e.split("=", 1) for e in unit.definition.environment)}
        argv, uid = command.expanded(environ), self.machine.uid_of(unit.definition.user)
        own = {} if uid in (None, 0) else {"USER": unit.definition.user, "LOGNAME": unit.definition.user}
        main = self._spawn(unit, argv, "the main process", own, uid=uid or 0, exe=_real(command.path))
        unit.main, unit.exec_pid, unit.exec_told = main, main.pid, True
        unit.exec_start_us, unit.exec_start_wall_us = self._stamp(), self.machine.wall_us()
        main.on_end = lambda code, status: self._main_ended(unit, code, status)
        broken = 217 if uid is None else 203 if not self._runnable(command) else 0
        if broken:
            step = "USER" if broken == 217 else "EXEC"
            self.say(unit, f"{unit.name}: Failed at step {step} spawning {command.path}: No such file or directory")
            self.machine.processes.end(main, EXITED, broken)
            return
        self.say(unit, f"Started {unit.name}.")
        unit.job = None
        self.enter(unit, "active", "running")
        self.launch(unit, main)

    def _runnable(self, command: Command) -> bool:
        return command.path.startswith(FOLDERS) and command.path not in self.absent

    # ---- end ----

    def _main_ended(self, unit: SimUnit, code: int, status: int) -> None:
        unit.main = None
        unit.exec_code, unit.exec_status = code, status
        unit.exec_exit_us, unit.exec_exit_wall_us = self.machine.mono_us(), self.machine.wall_us()
        clean = (code == EXITED and status == 0) or (code == KILLED and status in _CLEAN_SIGNALS)
        if not clean:
            self.say(unit, f"{unit.name}: Main process exited, {_ended(code, status)}")
        if not clean and unit.result == "success":
            unit.result = "exit-code" if code == EXITED else "signal"
        self._kill_rest(unit)

    def _kill_rest(self, unit: SimUnit) -> None:
        """After the main process: by the kill mode. Then the unit is dead once nothing is left, or given up."""
        mode = unit.definition.kill_mode
        if unit.active != "deactivating":
            self.enter(unit, "deactivating", "stop-sigterm")
        if mode in ("mixed", "control-group"):
            unit.sub = "final-sigkill" if mode == "mixed" else "final-sigterm"
            unit.set_timer(self.machine.after(unit.definition.stop_timeout_s, lambda: self._give_up(unit)))
            for process in self.machine.processes.in_group(unit.group):
                if mode == "mixed":
                    text = f"Killing process {process.pid} ({process.comm}) with signal SIGKILL."
                    self.say(unit, f"{unit.name}: {text}")
                self.machine.processes.signal(process, "KILL" if mode == "mixed" else "TERM")
            if unit.active != "deactivating" or self.machine.processes.in_group(unit.group):
                return
        self.dead(unit)

    def _give_up(self, unit: SimUnit) -> None:
        """Nothing more can be done about what survived."""
        if unit.definition.kill_mode == "control-group" and unit.sub == "final-sigterm":
            unit.sub = "final-sigkill"
            for process in self.machine.processes.in_group(unit.group):
                self.machine.processes.signal(process, "KILL")
            if not self.machine.processes.in_group(unit.group):
                return
            unit.set_timer(self.machine.after(unit.definition.stop_timeout_s, lambda: self._give_up(unit)))
            return
        self.say(unit, f"{unit.name}: Processes still around after final SIGKILL. Entering failed mode.")
        if unit.result == "success":
            unit.result = "timeout"
        self.dead(unit)

    def process_ended(self, unit: SimUnit) -> None:
        """Something of the unit's cgroup ended: perhaps the last that was waited for."""
        waits = unit.active == "deactivating" and unit.main is None and unit.control is None
        if waits and unit.sub.startswith("final") and not self.machine.processes.in_group(unit.group):
            self.dead(unit)

    def dead(self, unit: SimUnit) -> None:
        """The end of a start: failed or inactive, then perhaps what comes after."""
        unit.set_timer(None)
        self._disown(unit)
        if unit.result != "success":
            self.say(unit, f"{unit.name}: Failed with result '{unit.result}'.")
        else:
            self.say(unit, f"{unit.name}: Deactivated successfully.")
        again = not unit.forbidden and self._shall_restart(unit)
        job, unit.job = (unit.job if unit.queued else None), None
        if unit.forbidden:
            self.say(unit, f"Stopped {unit.name}.")
        self.enter(unit, *(("failed", "failed") if unit.result != "success" else ("inactive", "dead")))
        unit.flush = not again
        if job is not None:
            unit.job = ("start", job[1])
            self.begin(unit)
        elif again:
            self.enter(unit, "activating", "auto-restart")
            unit.set_timer(self.machine.after(unit.definition.restart_s, lambda: self._restart(unit)))

    def _shall_restart(self, unit: SimUnit) -> bool:
        if unit.exec_code == EXITED and unit.exec_status in unit.definition.prevent:
            return False
        match unit.definition.restart:
            case "always":
                return True
            case "on-success":
                return unit.result == "success"
            case "on-failure":
                return unit.result != "success"
            case "on-abnormal":
                return unit.result not in ("success", "exit-code")
            case "on-abort":
                return unit.result in ("signal", "core-dump")
            case _:
                return False

    def _restart(self, unit: SimUnit) -> None:
        if unit.load_state != "loaded":
            why = {"masked": "is masked", "not-found": "not found"}.get(unit.load_state, "has a bad unit file setting")
            self.say(unit, f"{unit.name}: Failed to schedule restart job: Unit {unit.name} {why}.")
            unit.result, unit.job = "resources", None
            self.enter(unit, "failed", "failed")
            return
        unit.restarts += 1
        self.say(unit, f"{unit.name}: Scheduled restart job, restart counter is at {unit.restarts}.")
        self.enter(unit, "inactive", "dead")
        self.say(unit, f"Stopped {unit.name}.")
        self.begin(unit, auto=True)

    # ---- stop ----

    def stop(self, unit: SimUnit) -> None:
        """What `systemctl stop` sets off; nothing waits for it."""
        unit.forbidden = True
        if unit.down or unit.active == "deactivating":
            return
        if unit.sub == "auto-restart":
            unit.set_timer(None)
            self.say(unit, f"Stopped {unit.name}.")
            unit.flush = True
            self.enter(unit, "inactive", "dead")
            return
        if unit.sub != "start-pre":
            self.say(unit, f"Stopping {unit.name}...")
        self.enter(unit, "deactivating", "stop-sigterm")
        unit.set_timer(self.machine.after(unit.definition.stop_timeout_s, lambda: self._stop_timed_out(unit)))
        chief = unit.control if unit.control is not None else unit.main
        if unit.definition.kill_mode == "control-group":
            for process in self.machine.processes.in_group(unit.group):
                self.machine.processes.signal(process, "TERM")
        elif chief is not None:
            self.machine.processes.signal(chief, "TERM")

    def _stop_timed_out(self, unit: SimUnit) -> None:
        self.say(unit, f"{unit.name}: State 'stop-sigterm' timed out. Killing.")
        unit.result = "timeout"
        self.enter(unit, "deactivating", "stop-sigkill")
        chief = unit.control if unit.control is not None else unit.main
        every = [] if unit.definition.kill_mode == "process" else self.machine.processes.in_group(unit.group)
        for process in [*([] if chief is None else [chief]), *every]:
            self.machine.processes.signal(process, "KILL")
        if unit.active == "deactivating" and unit.sub == "stop-sigkill":
            unit.set_timer(self.machine.after(unit.definition.stop_timeout_s, lambda: self._give_up(unit)))


def _ended(code: int, status: int) -> str:
    if code == KILLED:
        return f"code=killed, status={status}/{_NUMBERS.get(status, str(status))}"
    return f"code=exited, status={status}/{_STATUS.get(status, 'n/a')}"


def _real(path: str) -> str:
    """Where /proc/PID/exe points: a virtual environment's python is the system's, a script is run by it."""
    return "/usr/bin/python3.11" if "/bin/" in path and path.startswith(("/opt/", "/srv/")) else path
