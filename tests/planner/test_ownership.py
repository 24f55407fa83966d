"""Ownership: each row of the table in order, and that an earlier row wins over a later one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.observation import Loaded, Observation, Process, ProcessId, Session, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.ownership import Ledger, Ownership, attribute, is_engine
from tests.planner.box import Box, BoxUnit

UNIT = "stoker-m.server.service"
HOME = f"/system.slice/{UNIT}"
MARKS = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "store-uid"))
ENGINE = ("/opt/venv/bin/python", "-m", "sglang.launch_server", "--port", "30001")
STARTED = 10_000  # ticks: the unit's current start
NOW = 10_100

pytestmark = pytest.mark.main_job


def process(pid: int = 5120, **more: object) -> Process:
    """A root engine process under PID 1 in a cgroup of nobody's, younger than the unit's start."""
    base = Process(
        ProcessId(pid, STARTED + 50), 1, pid, pid, "S", 0, "python", "/gone", ENGINE, (), nvidia_open=True, user="root"
    )
    return replace(base, **more)  # type: ignore[arg-type]


def unit(active: str = "active", sub: str = "running", **more: object) -> Unit:
    box = Box(ticks=NOW)
    box.units[UNIT] = BoxUnit(file="[Service]\n", active=active, sub=sub, exit_ticks=STARTED, invocation="i" * 32)
    found = box.look(0, ()).unit(UNIT)
    assert isinstance(found, Unit)
    running = active in ("active", "reloading", "deactivating")
    base = replace(
        found,
        control_group=HOME if active not in ("inactive", "failed") else "",
        main_pid=1001 if running else 0,
        loaded=Loaded(ENGINE, (), "", ""),
    )
    return replace(base, **more)  # type: ignore[arg-type]


def owner(
    asked: Process,
    *others: Process,
    of: Unit | None = None,
    serves: bool | None = False,
    other_units: tuple[tuple[str, str], ...] | Unknown = (),
    sessions: tuple[Session, ...] | Unknown = (),
    uids: dict[str, int] | None = None,
) -> Ownership:
    managed = (of or unit("inactive", "dead"),)
    table = (asked, *others)
    look: Observation = replace(
        Box(ticks=NOW).look(0, ()), processes=table, units=managed, other_units=other_units, sessions=sessions
    )
    ledger = Ledger(
        look=look, processes={p.id.pid: p for p in table}, managed=managed, mark_units={"uid-m": (UNIT,)},
        store_uid="store-uid", uids={UNIT: 0} if uids is None else uids, serves={asked.id: serves},
    )  # fmt: skip
    return attribute(asked, ledger)


class TestUnknown:
    """Row 1: an input is missing, or the unit moves and its stop timeout has not passed."""

    def test_a_cgroup_that_could_not_be_read(self) -> None:
        assert owner(process(cgroup="")).owner == "unknown"

    @pytest.mark.parametrize("hidden", ["other_units", "sessions"])
    def test_units_or_sessions_that_could_not_be_read(self, hidden: str) -> None:
        missing = Unknown(Reason.TRUNCATED)
        found = owner(process(), other_units=missing) if hidden == "other_units" else owner(process(), sessions=missing)
        assert found.owner == "unknown"

    def test_a_home_unit_whose_state_nobody_asked_for(self) -> None:
        assert owner(process(cgroup="/system.slice/other.service")).owner == "unknown"

    def test_an_environment_that_could_not_be_read(self) -> None:
        assert owner(process(argv=("python3", "x.py"), marks=None)).owner == "unknown"

    def test_an_engine_whose_environment_could_not_be_read(self) -> None:
        """It may carry a mark, of ours or of another store."""
        assert owner(process(marks=None)).owner == "unknown"

    def test_not_yet_known_whether_it_serves(self) -> None:
        assert owner(process(), serves=None).owner == "unknown"
        assert owner(process(marks=MARKS), serves=None).owner == "unknown"

    @pytest.mark.parametrize(
        ("active", "sub"),
        [("deactivating", "stop-sigterm"), ("reloading", "reload"), ("activating", "auto-restart")],
    )
    @pytest.mark.parametrize("where", [HOME, "/gone"])
    def test_its_unit_moves_and_the_stop_timeout_has_not_passed(self, active: str, sub: str, where: str) -> None:
        found = owner(process(cgroup=where, marks=MARKS), of=unit(active, sub))
        assert (found.owner, found.unit) == ("unknown", UNIT)

    def test_a_unit_that_hangs_in_stopping_past_its_timeout_hides_nothing_old(self) -> None:
        old = process(id=ProcessId(5120, STARTED - 1), cgroup=HOME)
        assert owner(old, of=unit("deactivating", "stop-sigkill")).owner == "unknown"
        long_ago = unit("deactivating", "stop-sigkill", timeout_stop_us=1_000_000, state_change_us=1)
        assert owner(old, of=long_ago).owner == "orphan-proven"

    def test_a_unit_that_waits_in_the_gate_is_none_of_these(self) -> None:
        """D18: what is left in its cgroup from before is what it waits for."""
        old = process(id=ProcessId(5120, STARTED - 1), cgroup=HOME)
        assert owner(old, of=unit("activating", "start-pre")).owner == "orphan-proven"


class TestManaged:
    """Row 2: in the cgroup of a managed unit, started not before its current start."""

    def test_started_with_the_unit_or_later(self) -> None:
        assert owner(process(cgroup=HOME), of=unit()).owner == "managed"
        assert owner(process(cgroup=HOME, id=ProcessId(5120, STARTED)), of=unit()).owner == "managed"

    def test_below_the_units_cgroup(self) -> None:
        assert owner(process(cgroup=f"{HOME}/workers"), of=unit()).owner == "managed"

    def test_wins_over_what_it_is_called_and_whom_it_runs_as(self) -> None:
        nobody = process(cgroup=HOME, uid=1000, argv=("python3", "train.py"), marks=None)
        assert owner(nobody, of=unit(), serves=True).owner == "managed"


class TestProvenByCgroup:
    """Row 3: in a managed unit's cgroup, but older than its current start, or the unit is not running."""

    def test_older_than_the_current_start(self) -> None:
        """B18, D18: systemd starts the unit beside what is left over."""
        assert owner(process(cgroup=HOME, id=ProcessId(5120, STARTED - 1)), of=unit()).owner == "orphan-proven"

    @pytest.mark.parametrize("state", ["inactive", "failed"])
    def test_the_unit_is_down(self, state: str) -> None:
        """B01, B03."""
        assert owner(process(cgroup=HOME), of=unit(state, "dead")).owner == "orphan-proven"

    def test_wins_over_another_uid_and_over_serving(self) -> None:
        left = process(cgroup=HOME, uid=1000, argv=("VLLM::EngineCore",))
        assert owner(left, of=unit("failed", "failed"), serves=True).owner == "orphan-proven"


class TestForeign:
    """Row 4: somebody else's unit, container, session or uid, or it serves."""

    @pytest.mark.parametrize("state", ["active", "activating", "deactivating", "reloading"])
    def test_in_the_cgroup_of_another_live_unit(self, state: str) -> None:
        found = owner(process(cgroup="/system.slice/x.service", marks=MARKS), other_units=(("x.service", state),))
        assert found.owner == "foreign"

    @pytest.mark.parametrize(
        "cgroup",
        [
            "/system.slice/docker-4be1.scope",
            "/machine.slice/libpod-4be1.scope",
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-4be1.scope",
            "/machine.slice/machine-web.scope",
        ],
    )
    def test_in_a_live_container_scope(self, cgroup: str) -> None:
        name = cgroup.rpartition("/")[2]
        assert owner(process(cgroup=cgroup, marks=MARKS), other_units=((name, "active"),)).owner == "foreign"

    @pytest.mark.parametrize("cgroup", ["/lxc/129/ns/init.scope", "/lxc.payload.web/x", "/docker/4be1"])
    def test_in_a_container_that_systemd_does_not_know(self, cgroup: str) -> None:
        found = owner(process(cgroup=cgroup), other_units=(("init.scope", "active"),))
        assert found.owner == "foreign"

    def test_a_container_inside_a_container_is_held_by_the_outer_one(self) -> None:
        inner = process(cgroup="/lxc/129/ns/system.slice/docker-4be1.scope", marks=MARKS)
        assert owner(inner, other_units=(("docker-4be1.scope", "inactive"),)).owner == "foreign"

    def test_in_a_login_session_with_a_living_leader(self) -> None:
        leader = process(
            900, argv=("sshd: root@pts/0",), comm="sshd", cgroup="/user.slice/user-0.slice/session-4.scope"
        )
        mine = process(cgroup="/user.slice/user-0.slice/session-4.scope")
        assert owner(mine, leader, sessions=(Session("4", 900),)).owner == "foreign"

    def test_a_session_whose_leader_is_gone_holds_nothing(self) -> None:
        mine = process(cgroup="/user.slice/user-0.slice/session-4.scope")
        assert owner(mine, sessions=(Session("4", 0),)).owner == "orphan-likely"
        dead = process(900, state="Z", argv=(), comm="sshd")
        assert owner(mine, dead, sessions=(Session("4", 900),)).owner == "orphan-likely"

    def test_another_uid_than_the_units(self) -> None:
        """B16."""
        assert owner(process(uid=1000, user="ray")).owner == "foreign"
        assert owner(process(uid=1000, marks=MARKS)).owner == "foreign"

    @pytest.mark.parametrize("marks", [(), MARKS])
    def test_a_port_of_its_tree_serves(self, marks: tuple[tuple[str, str], ...]) -> None:
        assert owner(process(marks=marks), serves=True).owner == "foreign"


class TestProvenByMark:
    """Row 5: our store's mark in its environment, and its unit not live."""

    def test_ours_whatever_it_is_called_and_whoever_launched_it(self) -> None:
        launcher = process(900, argv=("/usr/bin/supervisor",), marks=())
        left = process(argv=("python3",), marks=MARKS, ppid=900)
        assert owner(left, launcher).owner == "orphan-proven"

    def test_a_mark_whose_unit_lives_is_no_orphan(self) -> None:
        assert owner(process(marks=MARKS), of=unit()).owner == "foreign"

    @pytest.mark.parametrize("argv", [ENGINE, ("sglang::scheduler_TP0",), ("python3", "x.py")])
    @pytest.mark.parametrize("ticks", [STARTED - 5_000, STARTED - 1, STARTED, STARTED + 50])
    def test_while_its_unit_lives_no_age_and_no_title_makes_it_an_orphan(
        self, argv: tuple[str, ...], ticks: int
    ) -> None:
        """One that left the cgroup may be at work for the unit; left over from before it is cleared once that ends."""
        moved = process(id=ProcessId(5120, ticks), argv=argv, marks=MARKS)
        assert owner(moved, of=unit()) == Ownership("foreign", f"carries our mark, but {UNIT} is live", UNIT)
        assert owner(moved, of=unit("failed", "failed")).owner == "orphan-proven"

    def test_a_mark_of_another_store_proves_nothing(self) -> None:
        other = (("STOKER_SPEC", "uid-m"), ("STOKER_STORE", "another"))
        assert owner(process(argv=("python3", "x.py"), marks=other)).owner == "foreign"


class TestLikely:
    """Row 6: a declared engine's command line or title, the unit's uid, and nobody attends it."""

    @pytest.mark.parametrize(
        "argv",
        [
            ENGINE,
            ("VLLM::EngineCore",),
            ("VLLM::Worker_TP0", "", ""),
            ("sglang::scheduler_TP0",),
            ("/opt/venv/bin/vllm", "serve", "/models/m"),
            ("/opt/venv/bin/python3", "/opt/venv/bin/sglang", "serve"),
        ],
    )
    def test_an_engine_that_nobody_attends(self, argv: tuple[str, ...]) -> None:
        assert owner(process(argv=argv)).owner == "orphan-likely"

    def test_a_title_is_known_by_the_fifteen_characters_the_kernel_keeps(self) -> None:
        """B05: comm shows `VLLM::EngineCor`, and the word python is nowhere."""
        assert is_engine(process(argv=(), comm="VLLM::EngineCor"))
        assert is_engine(process(argv=("VLLM::EngineCore",), comm="VLLM::EngineCor"))
        assert is_engine(process(argv=(), comm="sglang::schedul"))
        assert not is_engine(process(argv=(), comm="VLLM"))

    def test_workers_are_looked_through_to_their_engine(self) -> None:
        """B03: EngineCore has PID 1 as its parent, the worker has EngineCore."""
        core = process(39011, argv=("VLLM::EngineCore_DP0",))
        worker = process(39140, argv=("VLLM::Worker_DP0_TP0",), ppid=39011)
        assert owner(worker, core).owner == "orphan-likely"

    def test_a_shell_without_a_session_attends_nothing(self) -> None:
        shell = process(900, argv=("-bash",), comm="bash", cgroup="/gone")
        assert owner(process(ppid=900), shell).owner == "orphan-likely"

    def test_a_living_launcher_attends_it(self) -> None:
        """B01: the new parent is whatever launched the server."""
        launcher = process(21913, argv=("/usr/bin/supervisor",), comm="supervisor")
        assert owner(process(ppid=21913), launcher).owner == "foreign"

    def test_a_parent_that_was_not_seen_may_attend_it(self) -> None:
        assert owner(process(ppid=21913)).owner == "unknown"

    def test_a_dead_container_scope_owns_nothing(self) -> None:
        """B20: docker rm left the worker, systemctl knows no such scope."""
        left = process(argv=("VLLM::Worker",), cgroup="/system.slice/docker-4be1.scope")
        assert owner(left, other_units=(("docker-4be1.scope", "inactive"),)).owner == "orphan-likely"


class TestEverythingElse:
    """Row 7."""

    @pytest.mark.parametrize(
        "argv",
        [
            ("/usr/bin/python3", "/usr/bin/unattended-upgrade"),
            ("python3", "/opt/monitoring/agent.py"),
            ("python3", "train.py", "--tensorboard", "vllm-logs"),
            ("tail", "-f", "/var/log/vllm.log"),
            ("orted",),
        ],
    )
    def test_a_name_or_ppid_1_alone_proves_nothing(self, argv: tuple[str, ...]) -> None:
        """B14: never by interpreter."""
        assert owner(process(argv=argv)).owner == "foreign"
