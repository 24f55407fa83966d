"""Ownership against whoever looks like ours: copied marks, launchers, nested groups, inputs that are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.observation import Loaded, Session, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.holders import holders_of, ledger_of
from tests.planner.box import UUIDS, Box, BoxUnit
from tests.planner.driving import HOST, Driver, spec
from tests.planner.test_ownership import HOME, MARKS, NOW, STARTED, UNIT, owner, process, unit

SCOPE = "/user.slice/user-0.slice/session-4.scope"

pytestmark = pytest.mark.strays


class TestCopiedMarks:
    """A person runs something with the environment of our unit, which is down."""

    @pytest.mark.parametrize("argv", [("-bash",), ("bash",), ("/bin/zsh", "-l"), ("bash", "--rcfile", "/x/rc", "-i")])
    @pytest.mark.parametrize("ppid", [1, 800])
    def test_what_a_terminals_shell_started_is_that_persons(self, argv: tuple[str, ...], ppid: int) -> None:
        """Also in a tmux whose login has ended, where no session attends it."""
        tmux = process(800, argv=("tmux",), comm="tmux: server", marks=(), cgroup=SCOPE)
        shell = process(900, argv=argv, comm="bash", marks=(), ppid=ppid, cgroup=SCOPE)
        debug = process(argv=("python3", "debug.py"), marks=MARKS, ppid=900, session=900, cgroup=SCOPE)
        assert owner(debug, shell, tmux).owner == "foreign"

    def test_the_shell_itself_with_a_copied_environment_is_that_persons(self) -> None:
        shell = process(900, argv=("-bash",), comm="bash", marks=MARKS, session=900)
        assert owner(shell).owner == "foreign"

    def test_in_a_login_session_it_is_foreign_whatever_it_carries(self) -> None:
        leader = process(700, argv=("sshd: root@pts/0",), comm="sshd", marks=(), cgroup=SCOPE)
        debug = process(argv=("python3", "debug.py"), marks=MARKS, cgroup=SCOPE)
        assert owner(debug, leader, sessions=(Session("4", 700),)).owner == "foreign"

    @pytest.mark.parametrize("argv", [("-bash",), ("/bin/sh", "-c", "python3 -m sglang.launch_server; true")])
    def test_a_worker_that_a_shell_only_inherited_is_an_orphan(self, argv: tuple[str, ...]) -> None:
        """systemd gave its main process a session of its own, and that one is gone."""
        shell = process(900, argv=argv, comm="sh", marks=(), session=900)
        assert owner(process(marks=MARKS, ppid=900, session=4711), shell).owner == "orphan-proven"

    def test_a_wrapper_script_of_the_unit_is_no_terminal(self) -> None:
        wrapper = process(900, argv=("/bin/sh", "-c", "exec python3 x"), comm="sh", marks=MARKS, session=900)
        worker = process(argv=("python3", "x"), marks=MARKS, ppid=900, session=900)
        assert owner(worker, wrapper).owner == "orphan-proven"
        assert owner(wrapper).owner == "orphan-proven"

    def test_a_dead_shell_of_that_number_attends_nothing(self) -> None:
        dead = process(900, argv=("-bash",), comm="bash", state="Z", session=900)
        assert owner(process(marks=MARKS, ppid=1, session=900), dead).owner == "orphan-proven"


class TestLaunchers:
    """Row six: who launched it, through engines and shells, and what holds those."""

    def test_a_shell_under_a_living_launcher_attends_it(self) -> None:
        tmux = process(800, argv=("tmux",), comm="tmux: server")
        shell = process(900, argv=("-bash",), comm="bash", ppid=800)
        assert owner(process(ppid=900), shell, tmux).owner == "foreign"

    @pytest.mark.parametrize("cgroup", ["/gone", SCOPE])
    def test_a_shell_whose_session_is_over_attends_nothing(self, cgroup: str) -> None:
        """Dark production: started by hand over SSH, the login is closed, the shell lives on under PID 1."""
        shell = process(900, argv=("bash", "-c", "python3 -m sglang.launch_server"), comm="bash", cgroup=cgroup)
        assert owner(process(ppid=900, cgroup=cgroup), shell).owner == "orphan-likely"

    def test_a_shell_in_a_living_session_attends_what_left_it(self) -> None:
        leader = process(700, argv=("sshd: root@pts/0",), comm="sshd", cgroup=SCOPE)
        shell = process(900, argv=("-bash",), comm="bash", cgroup=SCOPE, ppid=700)
        found = owner(process(ppid=900, cgroup="/moved"), shell, leader, sessions=(Session("4", 700),))
        assert found.owner == "foreign"

    def test_a_worker_of_the_running_instance_that_moved_is_at_work(self) -> None:
        """Its environment is wiped, so that no mark tells; its launcher is the unit's main process."""
        main = process(1001, argv=("python3", "-m", "sglang.launch_server"), cgroup=HOME)
        moved = process(5121, argv=("sglang::scheduler_TP0",), cgroup="/moved", ppid=1001)
        assert owner(moved, main, of=unit()).owner == "foreign"
        assert owner(moved, replace(main, cgroup="/gone"), of=unit("failed", "failed")).owner == "orphan-likely"

    @pytest.mark.parametrize(("state", "expected"), [("active", "foreign"), ("failed", "orphan-likely")])
    def test_a_worker_under_an_engine_of_somebody_elses_unit_is_that_units(self, state: str, expected: str) -> None:
        engine = process(900, argv=("VLLM::EngineCore",), cgroup="/system.slice/theirs.service")
        moved = process(argv=("VLLM::Worker_TP0",), ppid=900, cgroup="/moved")
        assert owner(moved, engine, other_units=(("theirs.service", state),)).owner == expected

    def test_under_an_engine_whose_unit_is_not_known_it_is_not_known_either(self) -> None:
        engine = process(900, argv=("VLLM::EngineCore",), cgroup="/system.slice/theirs.service")
        assert owner(process(ppid=900), engine).owner == "unknown"

    def test_an_engine_of_another_user_is_a_launcher_like_any_other(self) -> None:
        engine = process(900, argv=("VLLM::EngineCore",), uid=1000)
        assert owner(process(ppid=900), engine).owner == "foreign"

    def test_a_launcher_outside_this_process_namespace_attends_it(self) -> None:
        assert owner(process(ppid=0)).owner == "foreign"

    def test_a_user_manager_attends_nothing_and_a_name_alone_is_none(self) -> None:
        manager = process(900, argv=("/lib/systemd/systemd", "--user"), comm="systemd", cgroup="/gone")
        assert owner(process(ppid=900), manager).owner == "orphan-likely"
        assert owner(process(ppid=900), replace(manager, argv=("systemd",))).owner == "foreign"

    def test_who_is_attended_is_not_asked_whether_it_serves(self) -> None:
        launcher = process(900, argv=("/usr/bin/supervisor",), comm="supervisor")
        assert owner(process(ppid=900), launcher, serves=None).owner == "foreign"


class TestGroups:
    """Which cgroup is whose."""

    @pytest.mark.parametrize("below", ["", "/", "/worker", "/a/b"])
    @pytest.mark.parametrize("slices", ["/system.slice", "/gpu.slice/gpu-serve.slice", ""])
    def test_what_a_dead_unit_left_is_found_under_its_name_in_any_slice(self, slices: str, below: str) -> None:
        left = process(cgroup=f"{slices}/{UNIT}{below}".rstrip("/"))
        assert owner(left, of=unit("failed", "failed")).owner == "orphan-proven"

    @pytest.mark.parametrize(
        "cgroup",
        [
            f"/user.slice/user-0.slice/user@0.service/app.slice/{UNIT}",
            f"/system.slice/theirs.service/{UNIT}",
            f"/system.slice/theirs.service/system.slice/{UNIT}/x",
        ],
    )
    def test_a_group_of_the_same_name_below_somebody_elses_unit_is_theirs(self, cgroup: str) -> None:
        live = (("user@0.service", "active"), ("theirs.service", "active"))
        found = owner(process(cgroup=cgroup, marks=MARKS), of=unit("failed", "failed"), other_units=live)
        assert found.owner == "foreign"

    def test_any_living_unit_above_outranks_one_below_that_is_not_known(self) -> None:
        asked = process(cgroup="/user.slice/user@0.service/app.slice/app-x.scope")
        assert owner(asked, other_units=(("user@0.service", "active"),)).owner == "foreign"
        assert owner(asked, other_units=(("user@0.service", "inactive"),)).owner == "unknown"

    @pytest.mark.parametrize("state", ["maintenance", "refreshing", "something-new"])
    def test_a_state_that_is_new_to_us_is_a_living_one(self, state: str) -> None:
        found = owner(process(cgroup="/system.slice/x.service"), other_units=(("x.service", state),))
        assert found.owner == "foreign"
        young = process(cgroup=HOME)
        assert owner(young, of=unit(state, "x", control_group=HOME, state_change_us=1)).owner == "managed"

    def test_an_unclaimed_unit_that_runs_keeps_what_is_in_its_group(self) -> None:
        driver = Driver(Box(), {"m": spec()}, host=HOST)
        driver.settle()
        driver.specs = {"n": spec("n", gpus=(0,), port=30002)}  # this store does not know m
        world = driver.world()
        look = world.observation
        holders = holders_of(world, look, ledger_of(world, look))  # type: ignore[arg-type]
        owners = {h.ownership.owner for h in holders.all}  # type: ignore[union-attr]
        assert owners == {"foreign"}


class TestMoving:
    """A unit on its way, as far as its stop timeout goes."""

    @pytest.mark.parametrize("sub", ["auto-restart", "auto-restart-queued", "dead-before-auto-restart"])
    @pytest.mark.parametrize("active", ["activating", "inactive", "failed"])
    def test_between_two_automatic_starts_nothing_is_said_of_its_processes(self, active: str, sub: str) -> None:
        """systemd 254 calls some of these moments inactive or failed."""
        moving = unit(active, sub, state_change_us=NOW * 10_000 - 1_000_000)
        assert owner(process(cgroup=HOME), of=moving).owner == "unknown"
        assert owner(process(marks=MARKS), of=moving).owner == "unknown"

    def test_when_it_began_to_stop_is_not_known(self) -> None:
        assert owner(process(cgroup=HOME), of=unit("deactivating", "stop", state_change_us=0)).owner == "unknown"

    def test_a_running_unit_whose_start_is_not_known_owns_nobody_surely(self) -> None:
        assert owner(process(cgroup=HOME), of=unit(inactive_exit_us=0)).owner == "unknown"

    def test_a_process_some_ms_older_than_the_start_needs_its_parent_to_be_told(self) -> None:
        main = process(1001, cgroup=HOME)
        child = process(1002, cgroup=HOME, ppid=1001, id=replace(process().id, pid=1002, start_ticks=STARTED - 1))
        assert owner(child, main, of=unit(main_pid=1000)).owner == "orphan-proven"
        assert owner(child, main, of=unit()).owner == "managed"
        assert owner(child, of=unit(main_pid=1000)).owner == "unknown"

    @pytest.mark.parametrize("sub", ["running", "exited", "start"])
    def test_a_unit_that_is_up_without_a_main_process_lives(self, sub: str) -> None:
        up = unit("active", sub, main_pid=0)
        assert owner(process(marks=MARKS), of=up).owner == "foreign"

    def test_in_the_gate_nothing_of_this_start_was_executed_yet(self) -> None:
        waiting = unit("activating", "start-pre", main_pid=0, control_pid=77)
        assert owner(process(marks=MARKS), of=waiting).owner == "orphan-proven"
        old = process(cgroup=HOME, id=replace(process().id, start_ticks=STARTED - 500))
        assert owner(old, of=waiting).owner == "orphan-proven"


class TestUser:
    """Row four: another uid than the unit's, where that is known."""

    def test_a_unit_whose_user_could_not_be_read_has_no_sure_orphans(self) -> None:
        assert owner(process(), uids={UNIT: None}).owner == "unknown"
        assert owner(process(marks=MARKS), uids={UNIT: None}).owner == "unknown"

    @pytest.mark.parametrize(("main_pid", "loaded", "expected"), [
        (0, Unknown(Reason.UNPARSABLE), None),
        (77, Loaded((), (), "", ""), None),
        (0, Loaded((), (), "", ""), 0),
        (0, Loaded((), (), "nobody-here", ""), -1),
        (0, None, 1001),
    ])  # fmt: skip
    def test_whose_a_unit_is(self, main_pid: int, loaded: Loaded | Unknown | None, expected: int | None) -> None:
        """Of one that is not loaded what is declared counts."""
        box = Box()
        box.units[UNIT] = BoxUnit()
        box.spawn(("x",), "/gone", uid=1001, gpus={UUIDS[0]: 1})
        world = Driver(box, {"m": spec(user="u1001")}).world()
        look = world.observation
        units = tuple(
            replace(u, main_pid=main_pid, loaded=loaded)
            for u in look.units  # type: ignore[union-attr]
            if isinstance(u, Unit)
        )
        assert ledger_of(world, replace(look, units=units)).uids == {UNIT: expected}  # type: ignore[type-var]
