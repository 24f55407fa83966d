"""The verbs of stoker-host that change something: refusals in their order, and what is on disk afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import host
from daemon.probes.process import cgroup_path
from daemon.probes.report import Answer
from tests.host_scripts.conftest import NONCE, Box, said

UNIT = "stoker-k26.server.service"
TEXT = b"[Service]\nExecStart=/bin/true\nEnvironment='A=\xc3\xbc'\n"
GATE = b"gpu 0 GPU-00\nport 30001\n"


def ticks(pid: int) -> int:
    """Start of a process, as /proc shows it."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may be signalled."""
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def put(box: Box, ground: str = "-", text: bytes = TEXT) -> Answer:
    return box.change(
        "put-unit",
        f"unit {UNIT}",
        f"path {box.path('units')}/{UNIT}",
        f"ground {ground}",
        f"body {len(text)}",
        f"gate {len(GATE)}",
        body=text + GATE,
    )


def test_fence_is_taken_only_from_the_one_expected(box: Box) -> None:
    assert box.ask("take-fence", "expected -", "fence s1 1 a").exit_status == 0
    refused = box.ask("take-fence", "expected -", "fence s2 1 b")
    assert (refused.exit_status, said(refused, "fence")) == (host.EXIT_FENCED, ["s1 1 a"])
    assert box.ask("take-fence", "expected s1 1 a", "fence s1 2 b").exit_status == 0
    assert box.path("state/fence").read_text(encoding="ascii") == "s1 2 b\n"


@pytest.mark.parametrize("fence", ["", "s1", "s1 2", "s1 x run", "s1 2 run more", "s/1 2 run", "s1 2 ../run"])
def test_fence_of_another_form_is_refused(box: Box, fence: str) -> None:
    assert box.ask("take-fence", "expected -", f"fence {fence}").exit_status == host.EXIT_USAGE
    assert not box.path("state/fence").exists()


def test_hold_comes_before_the_fence_and_the_fence_before_the_ground(box: Box) -> None:
    box.fence("other 1 run")
    box.path("hold").write_text("Ada: replacing a card\nuntil noon\n", encoding="utf-8")
    lines = (f"unit {UNIT}", "ground-invocation -", "ground-state inactive")
    held = box.change("unit-start", *lines)
    assert (held.exit_status, held.error) == (host.EXIT_HELD, "Ada: replacing a card until noon")
    box.path("hold").unlink()
    assert box.change("unit-start", *lines).exit_status == host.EXIT_FENCED
    box.fence()
    box.unit(UNIT, InvocationID="", ActiveState="active")
    other_boot = box.ask("unit-start", "fence s1 3 run-a", "boot 0", *lines)
    assert other_boot.exit_status == host.EXIT_GROUND_CHANGED
    assert box.change("unit-start", *lines).exit_status == host.EXIT_GROUND_CHANGED
    assert box.calls() == []


def test_hold_refuses_a_new_fence_too(box: Box) -> None:
    box.path("hold").write_text("", encoding="utf-8")
    assert box.ask("take-fence", "expected -", "fence s1 1 a").exit_status == host.EXIT_HELD


def test_no_fence_on_the_host_refuses(box: Box) -> None:
    assert box.change("signal", "signal TERM", "target 4242 1").exit_status == host.EXIT_FENCED


def test_unit_is_written_byte_for_byte_and_reloaded(box: Box) -> None:
    box.fence()
    box.unit(UNIT, NeedDaemonReload="no")
    assert put(box).exit_status == 0
    file = box.path(f"units/{UNIT}")
    assert file.read_bytes() == TEXT
    assert file.stat().st_mode & 0o777 == 0o644
    assert box.path(f"state/units/{UNIT}").read_bytes() == GATE
    assert box.calls() == ["daemon-reload"]
    assert sorted(path.name for path in box.path("units").iterdir()) == [UNIT]
    again = put(box, hashlib.sha256(TEXT).hexdigest(), TEXT + b"#\n")
    assert again.exit_status == 0


@pytest.mark.parametrize("ground", ["-", "0" * 64])
def test_unit_file_that_changed_is_left_alone(box: Box, ground: str) -> None:
    box.fence()
    box.path(f"units/{UNIT}").write_text("by hand\n", encoding="utf-8")
    assert put(box, ground).exit_status == host.EXIT_GROUND_CHANGED
    assert box.path(f"units/{UNIT}").read_text(encoding="utf-8") == "by hand\n"
    assert not box.path(f"state/units/{UNIT}").exists()


def test_masked_unit_is_not_written_over(box: Box) -> None:
    box.fence()
    box.path(f"units/{UNIT}").symlink_to("/dev/null")
    assert put(box).exit_status == host.EXIT_GROUND_CHANGED


def test_unit_that_still_waits_for_a_reload_is_a_failure(box: Box) -> None:
    box.fence()
    box.unit(UNIT, NeedDaemonReload="yes")
    failed = put(box)
    assert failed.exit_status == host.EXIT_FAILED


def test_cut_body_changes_nothing(box: Box) -> None:
    box.fence()
    lines = (f"unit {UNIT}", f"path {box.path('units')}/{UNIT}", "ground -", f"body {len(TEXT) + 9}", "gate 1")
    assert box.change("put-unit", *lines, body=TEXT).exit_status == host.EXIT_USAGE
    assert not box.path(f"units/{UNIT}").exists()


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "units/other.service", f"units/{UNIT}.d/10-x.conf", f"units/../units/{UNIT}", f"units/{UNIT}/"],
)
def test_only_the_units_own_places_are_written(box: Box, path: str) -> None:
    box.fence()
    place = path if path.startswith("/") else f"{box.root}/{path}"
    lines = (f"unit {UNIT}", f"path {place}", "ground -", "body 1", "gate 1")
    assert box.change("put-unit", *lines, body=b"xy").exit_status == host.EXIT_USAGE
    assert list(box.path("units").iterdir()) == []


def test_dropin_is_written_and_removed_with_its_empty_folder(box: Box) -> None:
    box.fence()
    unit = "sglang-old.service"
    box.unit(unit, NeedDaemonReload="no", ActiveState="inactive")
    path = box.path(f"units/{unit}.d/50-stoker.conf")
    lines = (f"unit {unit}", f"path {path}")
    assert box.change("put-unit", *lines, "ground -", "body 2", "gate 1", body=b"x\ny").exit_status == 0
    assert path.read_bytes() == b"x\n"
    ground = hashlib.sha256(b"x\n").hexdigest()
    assert box.change("remove-unit", *lines, f"ground {ground}").exit_status == 0
    assert not path.parent.exists()
    assert box.calls() == ["daemon-reload", "daemon-reload"]


@pytest.mark.parametrize("state", ["active", "activating", "deactivating", "reloading"])
def test_unit_that_runs_is_not_removed(box: Box, state: str) -> None:
    box.fence()
    box.unit(UNIT, ActiveState=state)
    file = box.path(f"units/{UNIT}")
    file.write_bytes(TEXT)
    lines = (f"unit {UNIT}", f"path {file}", f"ground {hashlib.sha256(TEXT).hexdigest()}")
    assert box.change("remove-unit", *lines).exit_status == host.EXIT_GROUND_CHANGED
    assert file.exists()


def test_failed_unit_is_removed_with_everything_of_ours(box: Box) -> None:
    box.fence()
    box.unit(UNIT, ActiveState="failed", NeedDaemonReload="no")
    assert put(box).exit_status == 0
    file = box.path(f"units/{UNIT}")
    lines = (f"unit {UNIT}", f"path {file}", f"ground {hashlib.sha256(TEXT).hexdigest()}")
    assert box.change("remove-unit", *lines).exit_status == 0
    assert not file.exists()
    assert not box.path(f"state/units/{UNIT}").exists()
    assert box.calls()[1:] == [f"reset-failed -- {UNIT}", f"disable -- {UNIT}", "daemon-reload"]


def test_start_forgets_failures_first_and_does_not_wait(box: Box) -> None:
    box.fence()
    box.unit(UNIT, InvocationID="", ActiveState="failed", NeedDaemonReload="no")
    answer = box.change("unit-start", f"unit {UNIT}", "ground-invocation -", "ground-state failed")
    assert answer.exit_status == 0
    assert box.calls() == [f"reset-failed -- {UNIT}", f"--no-block start -- {UNIT}"]


def test_start_never_starts_an_old_definition(box: Box) -> None:
    box.fence()
    box.unit(UNIT, InvocationID="", ActiveState="inactive", NeedDaemonReload="yes")
    box.change("unit-start", f"unit {UNIT}", "ground-invocation -", "ground-state inactive")
    assert box.calls()[0] == "daemon-reload"


def test_refusal_of_systemctl_comes_with_its_words(box: Box) -> None:
    box.fence()
    box.unit(UNIT, InvocationID="aa", ActiveState="active")
    box.path("systemctl/fails").write_text("Job for x failed.\n", encoding="utf-8")
    failed = box.change("unit-stop", f"unit {UNIT}", "ground-invocation aa", "ground-state active")
    assert failed.exit_status == host.EXIT_FAILED
    assert "exit status 5" in failed.error
    assert "Job for x failed." in failed.error


def test_signal_reaches_the_process_that_was_meant_and_no_other(box: Box, sleeper: subprocess.Popen[bytes]) -> None:
    box.fence()
    start = ticks(sleeper.pid)
    wrong = box.change("signal", "signal KILL", f"target {sleeper.pid} {start + 1}", "target 1 1", "target 99999999 5")
    assert said(wrong, "result") == [f"{sleeper.pid} changed", "1 protected", "99999999 gone"]
    assert sleeper.poll() is None
    right = box.change("signal", "signal TERM", f"target {sleeper.pid} {start}")
    assert said(right, "result") == [f"{sleeper.pid} ok"]
    assert sleeper.wait(timeout=10) == -signal.SIGTERM


def cgroup_of(pid: int) -> str:
    """As the daemon reads it."""
    return cgroup_path(Path(f"/proc/{pid}/cgroup").read_bytes())


@pytest.mark.strays
def test_signal_reaches_nobody_who_moved_to_another_cgroup_since(box: Box, sleeper: subprocess.Popen[bytes]) -> None:
    box.fence()
    target, seen = f"target {sleeper.pid} {ticks(sleeper.pid)}", cgroup_of(sleeper.pid)
    for other in (f"{seen}/below", "/system.slice/other.service", ""):
        body = f"{other}\n".encode()
        moved = box.change("signal", "signal KILL", target, f"body {len(body)}", body=body)
        assert said(moved, "result") == [f"{sleeper.pid} moved"]
    assert sleeper.poll() is None
    body = f"{seen}\n".encode()
    same = box.change("signal", "signal KILL", target, f"body {len(body)}", body=body)
    assert said(same, "result") == [f"{sleeper.pid} ok"]
    assert sleeper.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.strays
@pytest.mark.parametrize("body", [b"/a\n/b\n", b"/a", b"\n\n\n"])
def test_signal_needs_one_cgroup_for_each_target(box: Box, sleeper: subprocess.Popen[bytes], body: bytes) -> None:
    box.fence()
    target = f"target {sleeper.pid} {ticks(sleeper.pid)}"
    refused = box.change("signal", "signal KILL", target, f"body {len(body)}", body=body)
    assert refused.exit_status == host.EXIT_USAGE
    assert sleeper.poll() is None


@pytest.mark.strays
def test_signal_reaches_neither_kernel_threads_nor_our_own_ancestors(box: Box) -> None:
    """The daemon of a local host is such an ancestor, and so is the session of any other."""
    box.fence()
    kernel = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if flags_of(pid) & 0x00200000]
    asked = [os.getpid(), os.getppid(), *kernel[:3]]
    answer = box.change("signal", "signal CONT", *(f"target {pid} {ticks(pid)}" for pid in asked if pid > 1))
    assert said(answer, "result") == [f"{pid} protected" for pid in asked if pid > 1]


def flags_of(pid: int) -> int:
    """Field 9 of /proc/PID/stat, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@pytest.mark.strays
@pytest.mark.parametrize("name", ["sshd", "sshd-session", "systemd", "systemd-logind", "dbus-daemon", "stoker-host"])
def test_signal_reaches_nothing_that_logins_or_systemd_hang_on(box: Box, tmp_path: Path, name: str) -> None:
    box.fence()
    program = tmp_path / name
    program.symlink_to(shutil.which("sleep") or "")
    process = subprocess.Popen([program, "60"])
    try:
        answer = box.change("signal", "signal KILL", f"target {process.pid} {ticks(process.pid)}")
        assert said(answer, "result") == [f"{process.pid} protected"]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("target", ["0 1", "-1 1", "1", "2 x", "2 3 4", "", "007 5", "5;id 1"])
def test_target_of_another_form_is_refused(box: Box, target: str) -> None:
    box.fence()
    assert box.change("signal", "signal TERM", f"target {target}").exit_status == host.EXIT_USAGE


def test_zombie_counts_as_gone(box: Box) -> None:
    box.fence()
    process = subprocess.Popen(["true"])
    while "State:\tZ" not in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii"):
        pass
    answer = box.change("signal", "signal KILL", f"target {process.pid} {ticks(process.pid)}")
    assert said(answer, "result") == [f"{process.pid} gone"]
    process.wait()


@pytest.mark.parametrize(
    "unit", ["", "a", "a.socket", "../a.service", "a b.service", "-a.service", "a$(id).service", "a" * 200 + ".service"]
)
@pytest.mark.parametrize("verb", ["unit-stop", "put-unit", "observe", "probe", "journal"])
def test_unit_of_another_form_is_refused(box: Box, verb: str, unit: str) -> None:
    box.fence()
    assert box.change(verb, f"unit {unit}", "ground-invocation -", "ground-state x").exit_status == host.EXIT_USAGE
    assert box.calls() == []


# ---- set-aside ----

DROPIN = b"[Service]\nEnvironment=NCCL_DEBUG=INFO\n"


def put_dropin(box: Box, folder: str = "units", name: str = "override.conf", text: bytes = DROPIN) -> Path:
    file = box.path(folder) / f"{UNIT}.d" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    return file


def aside(box: Box, file: Path, text: bytes = DROPIN) -> Answer:
    return box.change(
        "set-aside", f"unit {UNIT}", f"path {file}", f"ground {hashlib.sha256(text).hexdigest()}"
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["units", "units.run"])
def test_a_dropin_is_kept_elsewhere_whole_and_systemd_reloaded(box: Box, folder: str) -> None:
    box.fence()
    file = put_dropin(box, folder)
    file.chmod(0o640)
    done = aside(box, file)
    kept = list(box.path(f"state/set-aside/{UNIT}").iterdir())
    assert done.exit_status == 0
    assert said(done, "result") == [f"moved {file} to {kept[0]}"]
    assert [k.name.rpartition(".")[0] for k in kept] == ["override.conf"]
    assert (kept[0].read_bytes(), kept[0].stat().st_mode & 0o777) == (DROPIN, 0o640)
    assert box.path("state/set-aside").stat().st_mode & 0o777 == 0o700
    assert not file.parent.exists()
    assert box.calls() == ["daemon-reload"]


def test_two_of_one_name_in_one_second_are_both_kept_and_others_files_stay(box: Box) -> None:
    box.fence()
    other = put_dropin(box, name="other.conf")
    for folder in ("units", "units.run", "units"):
        assert aside(box, put_dropin(box, folder)).exit_status == 0
    assert len(list(box.path(f"state/set-aside/{UNIT}").iterdir())) == 3
    assert other.exists()


def test_a_dropin_that_was_changed_since_stays(box: Box) -> None:
    box.fence()
    file = put_dropin(box, text=b"[Service]\nNice=1\n")
    refused = aside(box, file)
    assert refused.exit_status == host.EXIT_GROUND_CHANGED
    assert file.read_bytes() == b"[Service]\nNice=1\n"
    file.unlink()
    assert aside(box, file).exit_status == host.EXIT_GROUND_CHANGED
    assert not box.path(f"state/set-aside/{UNIT}").exists()
    assert box.calls() == []


def test_setting_aside_is_refused_under_a_hold_and_a_foreign_fence(box: Box) -> None:
    file = put_dropin(box)
    box.fence("s2 1 b")
    assert aside(box, file).exit_status == host.EXIT_FENCED
    box.fence()
    box.path("hold").write_text("ask Ann\n", encoding="utf-8")
    assert aside(box, file).exit_status == host.EXIT_HELD
    assert file.exists()


@pytest.mark.parametrize(
    "path",
    ["units/{u}", "units/other.service.d/x.conf", "units/{u}.d/x", "units/{u}.d/../{u}.d/x.conf",
     "units/{u}.d/a b.conf", "units/{u}.d/.conf", "etc/passwd", ""],
)  # fmt: skip
def test_only_a_drop_in_of_the_unit_is_ever_set_aside(box: Box, path: str) -> None:
    box.fence()
    file = box.path(path.format(u=UNIT)) if path else Path("x.conf")
    if path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(DROPIN)
    assert aside(box, file).exit_status == host.EXIT_USAGE
    assert not path or file.exists()


def test_a_link_is_taken_away_and_what_it_points_to_is_kept(box: Box) -> None:
    box.fence()
    target = box.path("shared.conf")
    target.write_bytes(DROPIN)
    file = box.path("units") / f"{UNIT}.d" / "site.conf"
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    assert aside(box, file).exit_status == 0
    assert (target.read_bytes(), file.is_symlink()) == (DROPIN, False)
    assert [k.read_bytes() for k in box.path(f"state/set-aside/{UNIT}").iterdir()] == [DROPIN]


def test_a_folder_that_is_a_link_to_another_units_is_not_emptied(box: Box) -> None:
    box.fence()
    theirs = box.path("units") / "nginx.service.d"
    theirs.mkdir(parents=True)
    (theirs / "override.conf").write_bytes(DROPIN)
    folder = box.path("units") / f"{UNIT}.d"
    folder.symlink_to("nginx.service.d")
    assert aside(box, folder / "override.conf").exit_status == 64
    assert (theirs / "override.conf").exists()


def test_a_drop_in_that_cannot_be_moved_leaves_no_copy_at_each_try(box: Box) -> None:
    box.fence()
    file = put_dropin(box)
    refuses = f"case $* in *.conf.{NONCE}*) echo 'Operation not permitted' >&2; exit 1 ;; esac"
    box.tool("mv", f'#!/bin/sh\n{refuses}\nexec /bin/mv "$@"\n')
    for _ in range(3):
        assert aside(box, file).exit_status == 1
    assert file.exists()
    assert list(box.path(f"state/set-aside/{UNIT}").iterdir()) == []
