"""The look of stoker-host, on this machine and its own processes, read by the real parsers."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from daemon import host
from daemon.domain.observation import Fence, Observation, Process, Unknown
from daemon.domain.status import Reason
from daemon.probes.report import parse_observation
from daemon.probes.socket import parse_listeners
from tests.host_scripts.conftest import BOOT_ID, Box, said
from tests.probes.reference import show, uuid

UNIT = "stoker-k26.server.service"
ROW = f"0, {uuid(0)}, 00000000:06:00.0, NVIDIA H200, 580.159.04, 143771, 21623, 90, 36, Disabled\n"
SMI = """#!/bin/sh
case $1 in
*query-gpu=*) printf '%s' '{row}' ;;
*) cat {apps} ;;
esac
"""


def look(box: Box, *lines: str) -> Observation:
    seen = parse_observation(box.ask("observe", "limit-ms 5000", *lines), "gpu-a", 1.0)
    assert isinstance(seen, Observation)
    return seen


def with_driver(box: Box, *rows: str) -> None:
    box.path("apps").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    box.tool("nvidia-smi", SMI.format(row=ROW, apps=box.path("apps")))


def readable() -> bool:
    """Whether the open files of every process (but the first) may be read here: else holders cannot be known."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            for name in os.listdir(folder):
                os.readlink(folder / name)
        except PermissionError:
            if folder.parts[2] != "1" and not gone(folder.parent):
                return False
        except OSError:
            continue
    return True


def gone(process: Path) -> bool:
    """Whether it ended meanwhile, or is about to (no address space): its open files are closed to all but root."""
    try:
        facts = (process / "stat").read_text(errors="replace").rpartition(") ")[2].split()
        return facts[0] in ("Z", "X") or facts[20] == "0"
    except OSError:
        return True


def known(value: tuple[Process, ...] | Unknown) -> dict[int, Process]:
    """Processes by pid; Unknown exactly where this user may not see all of them."""
    assert isinstance(value, Unknown) != readable()
    return {} if isinstance(value, Unknown) else {process.id.pid: process for process in value}


@contextmanager
def holding(box: Box, *argv: str, env: dict[str, str] | None = None) -> Iterator[int]:
    """A process with one of the box's devices open."""
    device = box.path("dev/nvidia3")
    device.touch()
    with device.open("rb") as opened:
        process = subprocess.Popen([*argv], stdin=opened, env={**os.environ, **(env or {})}, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_bare_host_is_known_where_it_can_be(box: Box) -> None:
    seen = look(box)
    assert seen.identity.boot_id == BOOT_ID
    assert seen.identity.systemd == 252
    assert (seen.fence, seen.hold, seen.units) == (None, None, ())
    assert isinstance(seen.gpus, Unknown)
    assert seen.gpus.reason is Reason.TOOL_MISSING


@contextmanager
def running(*argv: str) -> Iterator[int]:
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def cgroup(box: Box, name: str, *pids: int) -> Path:
    """A cgroup of the box's own hierarchy."""
    folder = box.path("cgroup") / name
    folder.mkdir(parents=True)
    (box.path("cgroup") / "cgroup.procs").touch()
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids), encoding="ascii")
    return folder


@pytest.mark.parametrize("name", [f"system.slice/{UNIT}", f"stoker.slice/{UNIT}/deeper"])
def test_members_of_a_managed_cgroup_are_candidates(box: Box, name: str) -> None:
    with running("sleep", "60") as mine, running("sleep", "60") as other:
        cgroup(box, name, 0, mine)
        cgroup(box, "system.slice/other.service", other)
        seen = known(look(box, f"unit {UNIT}").processes)
        assert (mine in seen, other in seen) == (bool(seen), False)


@pytest.mark.parametrize("odd", [False, True], ids=["none-mounted", "unreadable"])
def test_every_process_is_asked_where_no_hierarchy_answers(box: Box, odd: bool) -> None:
    if odd:
        (cgroup(box, f"system.slice/{UNIT}") / "deeper/cgroup.procs").mkdir(parents=True)
    box.tool("grep", f'#!/bin/sh\necho "$*" >>{box.path("asked")}\nexec /usr/bin/grep "$@"\n')
    look(box, f"unit {UNIT}")
    asked = box.path("asked").read_text()
    assert f"/proc/{os.getpid()}/cgroup" in asked


def test_cgroups_of_others_are_not_read_one_by_one(box: Box) -> None:
    cgroup(box, f"system.slice/{UNIT}")
    box.tool("grep", f'#!/bin/sh\necho "$*" >>{box.path("asked")}\nexec /usr/bin/grep "$@"\n')
    with running("sleep", "60") as other:
        look(box, f"unit {UNIT}")
    assert f"/proc/{other}/stat" in box.path("asked").read_text()
    assert f"/proc/{other}/cgroup" not in box.path("asked").read_text()


def test_zombies_which_are_in_no_list_of_members_are_asked(box: Box) -> None:
    cgroup(box, f"system.slice/{UNIT}")
    box.tool("grep", f'#!/bin/sh\necho "$*" >>{box.path("asked")}\nexec /usr/bin/grep "$@"\n')
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    look(box, f"unit {UNIT}")
    child.wait()
    assert f"/proc/{child.pid}/cgroup" in box.path("asked").read_text()


def test_clock_is_that_of_start_ticks(box: Box) -> None:
    before = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    assert look(box).identity.monotonic_us >= before * 10_000


def test_host_without_systemd_says_so(box: Box) -> None:
    box.path("booted").rmdir()
    seen = look(box, f"unit {UNIT}")
    for value in (seen.units, seen.sessions, seen.other_units):
        assert isinstance(value, Unknown)
    assert isinstance(seen.units, Unknown)
    assert (seen.identity.systemd, seen.units.reason) == (0, Reason.NOT_SYSTEMD)


def test_fence_and_hold_are_read(box: Box) -> None:
    box.fence("s1 3 run-a")
    box.path("hold").write_text("Ada: card\n", encoding="utf-8")
    seen = look(box)
    assert (seen.fence, seen.hold) == (Fence("s1", 3, "run-a"), "Ada: card")


def test_holder_of_a_device_is_a_candidate_with_its_ancestors(box: Box) -> None:
    mark = {"STOKER_STORE": "s1", "STOKER_LAUNCH": "v1:ab\n/proc/1/environ", "SECRET": "x"}
    with holding(box, "sleep", "60", env=mark) as pid:
        seen = known(look(box).processes)
    if seen:
        assert (seen[pid].argv, seen[pid].nvidia_minors) == (("sleep", "60"), {3})
        assert seen[pid].marks == (("STOKER_LAUNCH", "v1:ab\n/proc/1/environ"), ("STOKER_STORE", "s1"))
        assert {os.getpid(), 1} <= set(seen)


def test_hostile_command_line_is_only_text(box: Box) -> None:
    forged = "x\n/proc/1/stat\n@0123456789abcdef0123456789abcdef end exit=0\n"
    with holding(box, "sh", "-c", "read _ </dev/tty; sleep 60", forged) as pid:
        seen = known(look(box).processes)
    assert not seen or seen[pid].argv[-1] == forged


@contextmanager
def crowd(box: Box, size: int, *argv: str) -> Iterator[int]:
    """The leader of so many processes of one command line, each with a device of the box open."""
    code = (
        f"import os, time\nfor _ in range({size}):\n    if not os.fork():\n        break\n"
        "else:\n    print(flush=True)\ntime.sleep(60)"
    )
    device = box.path("dev/nvidia3")
    device.touch()
    command = [sys.executable, "-c", code, *argv]
    with device.open("rb") as opened:
        process = subprocess.Popen(command, stdin=opened, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_long_command_lines_of_many_processes_hide_nobody(box: Box) -> None:
    """Each worker of a trainer has its command line once more; a main process's own is compared, and stays whole."""
    files = ["y" * 100_000, "z" * 100_000]
    with crowd(box, 30, *files) as leader:
        box.path(f"units/{UNIT}").write_text("[Service]\n", encoding="utf-8")
        box.path("systemctl/show").write_text(show(UNIT, leader), encoding="utf-8")
        seen = known(look(box, f"unit {UNIT}").processes)
    here = [one for one in seen.values() if one.pgrp == leader]
    assert not seen or len(here) == 31
    for one in here:
        assert one.argv[:2] == (sys.executable, "-c")
        assert (one.argv[3:] == tuple(files)) is (one.id.pid == leader)
        assert one.id.pid == leader or len("".join(one.argv)) < 5_000


def test_driver_row_names_a_process_of_this_host(box: Box) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        with_driver(box, f"{uuid(0)}, {process.pid}, a, b, 818", f"{uuid(0)}, 99999999, gone, 10")
        seen = look(box)
        process.kill()
    assert not isinstance(seen.gpus, Unknown)
    assert not isinstance(seen.apps, Unknown)
    assert [app.pid for app in seen.apps] == [process.pid, 99999999]
    found = known(seen.processes)
    assert not found or (process.pid in found and 99999999 not in found)


def test_listener_on_a_needed_port_is_seen_with_its_pid(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listeners = look(box, f"port {port}").listeners
    assert isinstance(listeners, Unknown) != readable()
    assert isinstance(listeners, Unknown) or [
        (found.address, found.port) for found in listeners if os.getpid() in found.pids and found.port == port
    ] == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("192.168.103.7%eth0", "192.168.103.7"),
        ("*", "::"),
        ("*%eth0", "::"),
        ("[::]", "::"),
        ("[::1]", "::1"),
        ("[fe80::1:20ff:fe0a:b]%eth0", "fe80::1:20ff:fe0a:b"),
        ("[2001:db8:1:2:3:4:5:60]", "2001:db8:1:2:3:4:5:60"),
        ("[2001:db8::]", "2001:db8::"),
        ("[::ffff:10.1.2.200]", "::ffff:10.1.2.200"),
    ],
)
def test_addresses_as_ss_prints_them(box: Box, told: str, address: str) -> None:
    """Lines as of iproute2 6.1: a cgroup's name, which anybody may choose, is no inode."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode, port = os.fstat(server.fileno()).st_ino, server.getsockname()[1]
        line = f"LISTEN 0 128 {told}:{port} 0.0.0.0:* uid:1000 ino:{inode} sk:47c cgroup:/x ino:7 <->"
        box.tool("ss", f"#!/bin/sh\necho '{line}'\n")
        answer = box.ask("observe", "limit-ms 5000", f"port {port}")
    found = parse_listeners(answer.sections["sockets"].text)
    assert [(one.address, one.port) for one in found if os.getpid() in one.pids] == [(str(ip_address(address)), port)]


def test_listeners_are_the_same_with_ss_and_without(box: Box) -> None:
    def listening() -> set[tuple[str, int]]:
        answer = box.ask("observe", "limit-ms 5000", *(f"port {port}" for port in ports))
        found = parse_listeners(answer.sections["sockets"].text)
        return {(one.address, one.port) for one in found if os.getpid() in one.pids}

    with ExitStack() as stack:
        bound = [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET)]
        if socket.has_dualstack_ipv6():
            bound += [("::1", socket.AF_INET6), ("::", socket.AF_INET6)]
        servers = [stack.enter_context(socket.create_server((at, 0), family=family)) for at, family in bound]
        ports = [server.getsockname()[1] for server in servers]
        with_ss = listening()
        box.tool("ss", "#!/bin/sh\nexit 1\n")
        assert listening() == with_ss == {(at, port) for (at, _), port in zip(bound, ports, strict=True)}


@pytest.mark.parametrize(
    ("says", "believed"),
    [
        ("Failed to open cgroup2 by ID", True),
        ("netlink receive error Cannot allocate memory (12)", False),
        ("Dump was interrupted and may be inconsistent.", False),
    ],
)
def test_ss_that_complains_of_its_answer_is_not_believed_though_its_status_is_0(
    box: Box, says: str, believed: bool
) -> None:
    """As iproute2 6.1 does after it lost what the kernel says of IPv6: whom it leaves out would pass for silent."""
    with socket.create_server(("127.0.0.1", 0)) as told, socket.create_server(("127.0.0.1", 0)) as left_out:
        inode, ports = os.fstat(told.fileno()).st_ino, [one.getsockname()[1] for one in (told, left_out)]
        line = f"LISTEN 0 128 127.0.0.1:{ports[0]} 0.0.0.0:* ino:{inode} sk:47c <->"
        box.tool("ss", f"#!/bin/sh\necho '{line}'\necho '{says}' >&2\n")
        answer = box.ask("observe", "limit-ms 5000", *(f"port {port}" for port in ports))
    found = parse_listeners(answer.sections["sockets"].text)
    assert {one.port for one in found} == ({ports[0]} if believed else set(ports))


@pytest.mark.parametrize("says", ["", "LISTEN 0 128 127.0.0.1:{port} 0.0.0.0:*", "LISTEN 0 128 127.0."])
def test_ss_that_does_not_tell_of_each_listener_which_it_is_is_not_believed(box: Box, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        box.tool("ss", f"#!/bin/sh\nprintf '%s' '{says.format(port=port)}'\n")
        answer = box.ask("observe", "limit-ms 5000", f"port {port}")
    assert [one.port for one in parse_listeners(answer.sections["sockets"].text)] == [port]


def test_a_listener_that_is_told_twice_is_one(box: Box) -> None:
    """ss that loses the kernel's answer asks for all of it again, or reads /proc/net/tcp, without a word of that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode, port = os.fstat(server.fileno()).st_ino, server.getsockname()[1]
        line = f"LISTEN 0 128 127.0.0.1:{port} 0.0.0.0:* ino:{inode} sk:47c <->"
        box.tool("ss", f"#!/bin/sh\necho '{line}'\necho '{line}'\n")
        answer = box.ask("observe", "limit-ms 5000", f"port {port}")
    assert [one.port for one in parse_listeners(answer.sections["sockets"].text)] == [port]


def test_a_dropin_that_comes_or_goes_during_the_look_is_listed_since_what_is_loaded_may_have_it(box: Box) -> None:
    box.path(f"units/{UNIT}").write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    folder = box.path(f"units/{UNIT}.d")
    late, early = folder / "late.conf", folder / "early.conf"
    folder.mkdir()
    early.write_text("[Unit]\n")
    box.tool("busctl", f"#!/bin/sh\necho '[Service]' >{late}\nrm -f {early}\nexit 1\n")
    answer = box.ask("observe", "limit-ms 5000")
    assert said(answer, "dropins") == [f"{UNIT} {early}", f"{UNIT} {late}"]
    assert f"{late}\0[Service]\n" in answer.sections["texts"].text


def test_a_dropin_that_is_renamed_during_the_look_leaves_what_was_read_of_the_others(box: Box) -> None:
    unit, folder = box.path(f"units/{UNIT}"), box.path(f"units/{UNIT}.d")
    unit.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    folder.mkdir()
    early, late = folder / "early.conf", folder / "late.conf"
    early.write_text("[Unit]\n")
    read = f"until [ -e {box.path('run')}/call.*/texts.rc ]; do sleep 0.01; done"
    box.tool("busctl", f"#!/bin/sh\n{read}\n[ ! -e {early} ] || mv {early} {late}\nexit 1\n")
    texts = box.ask("observe", "limit-ms 5000").sections["texts"]
    assert texts.exit_status == 0
    assert texts.text == f"{unit}\0[Service]\nExecStart=/bin/true\n\0{early}\0[Unit]\n\0{late}\0[Unit]\n\0"


def test_hostile_names_of_open_files_make_nobody_a_listener_or_a_holder(box: Box) -> None:
    """Names that look like another line of the scan, or like a socket or a device once something is cut off."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode, port = os.fstat(server.fileno()).st_ino, server.getsockname()[1]
        device = box.path("dev/nvidia0")
        names = [
            f"x\n/proc/1/fd socket:[{inode}]",
            f" socket:[{inode}]",
            f"y\nsocket:[{inode}]",
            f"z\n/proc/1/fd {device}",
        ]
        paths = [box.path("odd") / name for name in names]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        with ExitStack() as stack:
            fds = [stack.enter_context(path.open("rb")).fileno() for path in paths]
            process = stack.enter_context(subprocess.Popen(["sleep", "60"], pass_fds=fds))
            seen = look(box, f"port {port}")
            process.kill()
    if readable():
        assert not isinstance(seen.listeners, Unknown)
        assert {pid for found in seen.listeners if found.port == port for pid in found.pids} == {os.getpid()}
        assert not [one.id.pid for one in known(seen.processes).values() if one.nvidia_open]


def test_units_are_shown_loaded_and_read_from_disk(box: Box) -> None:
    text = "[Service]\nExecStart=/bin/sleep 'ü\\n'\n"
    box.path(f"units/{UNIT}").write_text(text, encoding="utf-8")
    box.path("systemctl/show").write_text(show(UNIT, os.getpid()) + "\n" + show("b.service", 0), encoding="utf-8")
    argv = '{{"type":"a(sasbttttuii)","data":[["/bin/sleep",["/bin/sleep","{}"],false,0,0,0,0,0,0,0]]}}'
    rest = '{"type":"as","data":["A=1"]}\n{"type":"s","data":""}\n{"type":"s","data":""}\n'
    box.tool("busctl", f"#!/bin/sh\nprintf '%s\\n' '{argv.format('a  b')}'\nprintf '%s' '{rest}'\n")
    units = look(box, f"unit {UNIT}", "unit b.service", "env PATH").units
    assert not isinstance(units, Unknown)
    first, second = units
    assert first.file is not None
    assert second.file is not None
    assert (first.file.text, second.file.text) == (text, None)
    assert first.loaded is not None
    assert not isinstance(first.loaded, Unknown)
    assert first.loaded.argv == ("/bin/sleep", "a  b")
    assert not readable() or (first.main is not None and "PATH" in dict(first.main.env))


def test_unit_files_with_our_name_are_found_unasked(box: Box) -> None:
    box.path(f"units/{UNIT}").write_text("[Service]\n", encoding="utf-8")
    box.path("units/other.service.d").mkdir()
    box.path("units/other.service.d/50-stoker.conf").write_text("[Service]\n#\n", encoding="utf-8")
    box.path("units/stoker-$(id).service").write_text("", encoding="utf-8")
    box.path("systemctl/show").write_text(show(UNIT, 0) + "\n" + show("other.service", 0), encoding="utf-8")
    units = look(box).units
    assert not isinstance(units, Unknown)
    assert [(unit.name, unit.file.text) for unit in units if unit.file] == [
        (UNIT, "[Service]\n"),
        ("other.service", "[Service]\n#\n"),
    ]


def test_dropins_in_a_units_own_folders_are_listed_with_their_text(box: Box) -> None:
    box.path(f"units/{UNIT}").write_text("[Service]\n", encoding="utf-8")
    for folder in ("units", "units.run"):
        place = box.path(folder) / f"{UNIT}.d"
        place.mkdir(parents=True)
        for name in ("x.conf", "x.conf.stoker-aside", "a b.conf"):
            (place / name).write_text(f"# {folder}\n", encoding="utf-8")
    box.path("systemctl/show").write_text(show(UNIT, 0), encoding="utf-8")
    units = look(box).units
    assert not isinstance(units, Unknown)
    found = units[0].dropins
    assert found is not None
    assert [(one.path, one.text) for one in found] == [
        (f"{box.path(folder)}/{UNIT}.d/x.conf", f"# {folder}\n") for folder in ("units", "units.run")
    ]


def test_variables_are_shown_by_name_and_by_the_beginning_of_their_name(box: Box) -> None:
    program = subprocess.Popen(["sleep", "60"], env={"NCCL_ALGO": "x", "NCCL": "y", "A": "1", "AB": "2"})
    try:
        box.path("systemctl/show").write_text(show(UNIT, program.pid), encoding="utf-8")
        units = look(box, f"unit {UNIT}", "env A", "env-prefix NCCL_").units
        assert not isinstance(units, Unknown)
        assert units[0].main is not None
        assert dict(units[0].main.env) == {"NCCL_ALGO": "x", "A": "1"}
    finally:
        program.kill()
        program.wait()


def test_bus_that_is_down_is_not_a_stopped_unit(box: Box) -> None:
    box.tool("systemctl", "#!/bin/sh\necho 'Failed to connect to bus: Host is down' >&2\nexit 1\n")
    units = look(box, f"unit {UNIT}").units
    assert isinstance(units, Unknown)
    assert units.reason is Reason.BUS_UNAVAILABLE


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", Reason.DRIVER_LIBRARY_MISMATCH),
        (f"printf '%s' '{ROW}'; echo cut; kill -9 $$", Reason.TOOL_TIMED_OUT),
        (f"printf '%s' '{ROW}'; exit 3", Reason.TOOL_FAILED),
    ],
)
def test_failing_driver_tool_is_unknown(box: Box, script: str, reason: Reason) -> None:
    box.tool("nvidia-smi", f"#!/bin/sh\n{script}\n")
    seen = look(box)
    assert isinstance(seen.gpus, Unknown)
    assert isinstance(seen.apps, Unknown)
    assert seen.gpus.reason is reason


def test_hung_driver_tool_is_ended_at_its_limit(box: Box) -> None:
    box.tool("nvidia-smi", "#!/bin/sh\nexec sleep 300\n")
    seen = parse_observation(box.ask("observe", "limit-ms 200"), "gpu-a", 1.0)
    assert isinstance(seen, Observation)
    assert isinstance(seen.gpus, Unknown)
    assert seen.gpus.reason is Reason.TOOL_TIMED_OUT


def test_hung_driver_tool_is_never_joined_by_a_second(box: Box) -> None:
    """A process noted as our nvidia-smi, older than any limit: this test's own."""
    with_driver(box)
    box.path("run/smi").mkdir()
    ticks = Path("/proc/1/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    box.path("run/smi/1").write_text(f"{ticks}\n", encoding="ascii")
    box.path("run/smi/99999999").write_text("5\n", encoding="ascii")
    seen = look(box)
    assert isinstance(seen.gpus, Unknown)
    assert seen.gpus.reason is Reason.TOOL_TIMED_OUT
    assert "pid 1" in seen.gpus.detail
    assert [path.name for path in box.path("run/smi").iterdir()] == ["1"]


def test_session_without_a_living_leader_has_none(box: Box) -> None:
    box.path("sessions/3").write_text(f"UID=0\nLEADER={os.getpid()}\n", encoding="ascii")
    box.path("sessions/c4").write_text("UID=0\nLEADER=99999999\n", encoding="ascii")
    os.mkfifo(box.path("sessions/3.ref"))
    sessions = look(box).sessions
    assert not isinstance(sessions, Unknown)
    assert {(session.id, session.leader_pid) for session in sessions} == {("3", os.getpid()), ("c4", 0)}


def test_whole_table_has_every_process(box: Box) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        seen = known(look(box, "whole-table 1").processes)
        process.kill()
    assert not seen or process.pid in seen


@pytest.mark.parametrize("text", [b"# x\n" * 1_200_000, b"[Service]\n\0\0Nice=5\n"], ids=["large", "nul"])
def test_a_drop_in_that_is_no_small_text_hides_nothing_else(box: Box, text: bytes) -> None:
    (box.path("units") / UNIT).write_bytes(b"[Service]\nExecStart=/bin/true\n")
    folder = box.path("units") / f"{UNIT}.d"
    folder.mkdir()
    (folder / "odd.conf").write_bytes(text)
    (folder / "plain.conf").write_bytes(b"[Service]\nNice=5\n")
    answer = box.ask("observe", "limit-ms 5000", f"unit {UNIT}")
    assert answer.sections["texts"].exit_status == 0
    assert b"ExecStart=/bin/true" in answer.sections["texts"].data
    assert said(answer, "dropins") == [f"{UNIT} {folder}/plain.conf"]


def test_a_long_chain_of_processes_is_walked_once(tmp_path: Path) -> None:
    """Of 20,000 processes each is the last one's child, in any order; one near the top holds a card. Walked anew for
    each generation, as it once was, this took minutes."""
    program = re.search(r"(?s)CHOOSE='\n(.*?)'\n", host.helper_text().decode())
    assert program is not None
    pids = [1, *random.sample(range(2, 400_000), 20_000)]
    parents = zip(pids, [0, *pids], strict=False)
    table = "".join(f"{pid} S {parent} {pid}\n" for pid, parent in parents)
    (tmp_path / "all").write_text(table, encoding="ascii")
    (tmp_path / "apps").write_text(f"GPU-0, {pids[3]}, a, 3\n", encoding="ascii")
    constants = {"units": "", "devices": "/dev/nvidia", "ports": "", "dir": str(tmp_path), "self": pids[5], "whole": 0}
    assigned = [word for key, value in constants.items() for word in ("-v", f"{key}={value}")]
    files = ["mode=apps", str(tmp_path / "apps"), "mode=all", str(tmp_path / "all")]
    done = subprocess.run(["awk", *assigned, program[1], *files], capture_output=True, timeout=90, check=True)
    assert set(map(int, done.stdout.split(b"\n")[0].split())) == set(pids)
