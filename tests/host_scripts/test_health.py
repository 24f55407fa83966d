"""What the helper keeps between looks: the driver's counters, lines of the kernel log; and how full disks are."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Reason
from daemon.probes.report import parse_observation
from tests.host_scripts.conftest import Box, said
from tests.probes.reference import uuid

pytestmark = pytest.mark.strays

ROW = f"0, {uuid(0)}, 00000000:3B:00.0, NVIDIA H200, 580.159.04, 143771, 21623, 90, 36, Disabled\n"
XID = "[12345.678911] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# Knows the fields up to the one named; each question is noted.
SMI = """#!/bin/sh
echo "$1" >>{asked}
case $1 in
*query-gpu=index*) printf '%s' '{row}' ;;
*{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; echo; exit 2 ;;
*remapped_rows*gpu_recovery_action*) echo '{uuid}, 0, [N/A], No, No, None' ;;
*remapped_rows*) echo '{uuid}, 0, [N/A], No, No' ;;
*query-gpu=uuid*) echo '{uuid}, 0, No' ;;
esac
"""


def look(box: Box, *lines: str) -> Observation:
    seen = parse_observation(box.ask("observe", "limit-ms 5000", *lines), "gpu-a", 1.0)
    assert isinstance(seen, Observation)
    return seen


def with_driver(box: Box, unknown: str = "nothing-of-it") -> None:
    text = SMI.format(asked=box.path("asked"), row=ROW, unknown=unknown, uuid=uuid(0))
    box.tool("nvidia-smi", text)


def asked_for_health(box: Box) -> list[str]:
    return [line for line in box.path("asked").read_text().splitlines() if "query-gpu=uuid" in line]


def make_old(path: Path) -> None:
    """As if what is kept there was read an hour ago."""
    first, _, rest = path.read_text().partition("\n")
    ticks, _, more = first.partition(" ")
    path.write_text(f"{int(ticks) - 360_000} {more}\n{rest}")


def with_kernel_log(box: Box, *lines: str) -> None:
    box.path("ring").write_text("".join(f"{line}\n" for line in lines))
    box.tool("dmesg", f"#!/bin/sh\necho x >>{box.path('read')}\ncat {box.path('ring')}\n")


def readings(box: Box) -> int:
    return len(box.path("read").read_text().splitlines())


def until_read(box: Box, times: int) -> Observation:
    """Looks until the kernel log was read that often: later readings outlive the look that began them."""
    end = time.monotonic() + 60
    while readings(box) < times or not box.path("run/kernel/state").exists() or box.path("run/kernel/ring").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    return look(box)


@pytest.mark.parametrize(
    ("unknown", "questions", "recovery", "pending"),
    [("nothing-of-it", 1, "None", False), ("gpu_recovery_action", 2, None, False), ("remapped_rows", 3, None, None)],
)
def test_the_driver_is_asked_for_as_many_counters_as_it_knows(
    box: Box, unknown: str, questions: int, recovery: str | None, pending: bool | None
) -> None:
    with_driver(box, unknown)
    seen = look(box)
    assert not isinstance(seen.health, Unknown)
    assert seen.health is not None
    assert (seen.health.cards[0].recovery, seen.health.cards[0].remap_pending) == (recovery, pending)
    assert len(asked_for_health(box)) == questions
    make_old(box.path("run/health"))
    look(box)
    assert len(asked_for_health(box)) == questions + 1


def test_the_counters_are_asked_for_far_less_often_than_the_figures(box: Box) -> None:
    with_driver(box)
    first, second = look(box), look(box)
    assert first.health == second.health
    assert len(asked_for_health(box)) == 1
    make_old(box.path("run/health"))
    third = look(box)
    assert not isinstance(third.health, Unknown)
    assert third.health is not None
    assert third.health != first.health
    assert len(asked_for_health(box)) == 2


def test_the_clock_of_the_answer_is_the_looks_own(box: Box) -> None:
    with_driver(box)
    seen = look(box)
    assert not isinstance(seen.health, Unknown)
    assert seen.health is not None
    assert 0 <= seen.identity.monotonic_us / 1e6 - seen.health.asked_s < 30


def test_a_line_of_the_kernel_log_makes_the_card_unusable_at_the_first_look(box: Box) -> None:
    with_driver(box, "gpu_recovery_action")
    with_kernel_log(box, "[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04", XID)
    seen = look(box)
    assert not isinstance(seen.gpus, Unknown)
    assert seen.gpus[0].fault is Reason.GPU_LOST


def test_the_kernel_log_is_read_at_its_own_slow_pace(box: Box) -> None:
    with_kernel_log(box, XID)
    look(box)
    look(box)
    assert readings(box) == 1


def test_a_line_that_fell_out_of_the_ring_is_kept_and_a_new_one_added(box: Box) -> None:
    with_kernel_log(box, *[f"[{n}.0] eth0: renamed from x{n}" for n in range(100)], XID, XID)
    look(box)
    with_kernel_log(box, "[20000.000000] Out of memory: Killed process 7 (a b) total-vm:1kB, anon-rss:1kB")
    make_old(box.path("run/kernel/state"))
    look(box)
    kernel = until_read(box, 2).kernel
    assert not isinstance(kernel, Unknown)
    assert [xid.code for xid in kernel.xids] == [79]
    assert [kill.comm for kill in kernel.kills] == ["a b"]
    assert len(box.path("run/kernel/lines").read_text().splitlines()) == 2


def test_a_flood_of_errors_is_kept_as_one_line_for_each_card_and_code(box: Box) -> None:
    flood = [f"[{n}.0] NVRM: Xid (PCI:0000:{n % 4:02x}:00): 31, pid={n}, name=x" for n in range(5000)]
    with_kernel_log(box, XID, *flood)
    kernel = look(box).kernel
    assert not isinstance(kernel, Unknown)
    assert sorted(xid.code for xid in kernel.xids) == [31, 31, 31, 31, 79]
    assert box.path("run/kernel/lines").stat().st_size < 1000


def test_a_flood_of_processes_ended_for_memory_hides_no_card(box: Box) -> None:
    """Each such process has two lines of its own: a container that ends so again and again soon has hundreds."""
    killed = [
        line
        for pid in range(1000, 1300)
        for line in (
            f"[{pid}.1] oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x,task=python,pid={pid},uid=0",
            f"[{pid}.2] Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB, anon-rss:1kB",
        )
    ]
    with_driver(box)
    with_kernel_log(box, XID, *killed)
    seen = look(box)
    assert not isinstance(seen.kernel, Unknown)
    assert [xid.code for xid in seen.kernel.xids] == [79]
    assert [kill.pid for kill in seen.kernel.kills] == list(range(1250, 1300))


def test_a_kernel_log_that_is_closed_is_unknown(box: Box) -> None:
    box.tool("dmesg", "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n")
    kernel = look(box).kernel
    assert isinstance(kernel, Unknown)
    assert kernel.reason is Reason.TOOL_FAILED
    assert "Operation not permitted" in kernel.detail


def test_a_kernel_log_that_cannot_be_kept_says_why(box: Box) -> None:
    with_kernel_log(box, XID)
    box.path("run/kernel").write_text("in the way")
    kernel = look(box).kernel
    assert isinstance(kernel, Unknown)
    assert "File exists" in kernel.detail


def test_a_state_of_the_kernel_log_that_a_full_disk_left_empty_is_none(box: Box) -> None:
    box.path("run/kernel").mkdir()
    box.path("run/kernel/state").touch()
    box.tool("dmesg", "#!/bin/sh\nread -r line\n")
    with subprocess.Popen([box.path("bin/dmesg")], stdin=subprocess.PIPE) as hung:
        box.path("run/kernel/pid").write_text(f"{hung.pid}\n")
        kernel = look(box).kernel
    assert isinstance(kernel, Unknown)
    assert "not read yet" in kernel.detail


@pytest.mark.parametrize("heeds", ["", "trap '' TERM\n"], ids=["ends", "ends-only-by-kill"])
def test_a_hung_kernel_log_delays_no_look_but_the_first_and_is_not_joined(box: Box, heeds: str) -> None:
    box.tool("dmesg", f"#!/bin/sh\n{heeds}echo x >>{box.path('read')}\nexec sleep 30\n")
    kernel = look(box).kernel
    assert isinstance(kernel, Unknown)
    assert kernel.reason is Reason.TOOL_TIMED_OUT
    make_old(box.path("run/kernel/state"))
    box.tool("dmesg", f"#!/bin/sh\necho x >>{box.path('read')}\nsleep 4\n")
    began = time.monotonic()
    seen = look(box)
    assert time.monotonic() - began < 3.5
    assert isinstance(seen.kernel, Unknown)
    look(box)
    until_read(box, 2)
    assert readings(box) == 2


def test_what_was_known_of_the_kernel_log_stands_while_it_cannot_be_read(box: Box) -> None:
    with_driver(box, "gpu_recovery_action")
    with_kernel_log(box, XID)
    look(box)
    box.tool("dmesg", f"#!/bin/sh\necho x >>{box.path('read')}\nexit 1\n")
    make_old(box.path("run/kernel/state"))
    look(box)
    seen = until_read(box, 2)
    assert isinstance(seen.kernel, Unknown)
    assert not isinstance(seen.gpus, Unknown)
    assert seen.gpus[0].fault is Reason.GPU_LOST


def test_a_hung_driver_costs_its_own_limit_and_the_rest_of_the_look_is_whole(box: Box) -> None:
    """And no look asks it anything while one that was asked is there (here: pid 1, noted as ours)."""
    box.tool("nvidia-smi", f"#!/bin/sh\necho x >>{box.path('asked')}\nexec setsid sh -c 'trap \"\" TERM; sleep 25'\n")
    answer = box.ask("observe", "limit-ms 300")
    assert all(answer.sections[name].exit_status == 124 for name in ("gpus", "apps", "health"))
    seen = parse_observation(answer, "a", 1.0)
    assert isinstance(seen, Observation)
    assert isinstance(seen.gpus, Unknown)
    assert not isinstance(seen.units, Unknown)
    assert len(box.path("asked").read_text().splitlines()) == 3
    ticks = Path("/proc/1/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    box.path("run/smi/1").write_text(f"{ticks}\n", encoding="ascii")
    began = time.monotonic()
    assert isinstance(look(box).gpus, Unknown)
    assert time.monotonic() - began < 5.0
    assert len(box.path("asked").read_text().splitlines()) == 3


def test_the_gates_are_told_which_cards_are_unusable_and_only_by_a_look_that_says_so(box: Box) -> None:
    note = box.path("run/unusable")
    look(box, f"unusable {uuid(0)}", f"unusable {uuid(3)}")
    assert note.read_text().split() == [uuid(0), uuid(3)]
    look(box)
    assert note.read_text().split() == [uuid(0), uuid(3)]
    look(box, "unusable -")
    assert not note.exists()


@pytest.mark.parametrize("word", ["", "../x", "a b", "x" * 65])
def test_what_is_no_card_is_refused(box: Box, word: str) -> None:
    assert box.ask("observe", f"unusable {word}").exit_status == 64


def test_disks_are_measured_in_blocks_and_inodes(box: Box) -> None:
    answer = box.ask("observe", "limit-ms 5000")
    assert "/" in {line.rpartition(" ")[2] for line in said(answer, "space")}
    seen = look(box)
    assert not isinstance(seen.space, Unknown)
    root = next(space for space in seen.space if space.path == "/")
    assert root.used_pct is not None
    assert 0 <= root.used_pct <= 100
    assert root.free_mib > 0
