"""What cannot be ended, or not yet, or is not what it was: survivors of KILL, zombies, reused pids, draining units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from harness import TestHost, bystanders, leftovers
from harness.bystanders import Bystander

from tests.hosts.strays import HOST, STRAY, Ground, Lane

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
MakeLane = Callable[..., Lane]
HELD_LANES = 1
OURS = "carries our mark and its unit is not live"
NOBODYS = "an engine's process that nobody attends"
STATE = "awk '{print $3}' /proc/%d/stat"


# ---- D: it survives KILL ----


def test_a_worker_in_state_d_is_reported_once_and_not_signalled_for_ever(make_lane: MakeLane) -> None:
    lane = make_lane(env=STRAY)
    lane.up()
    rank = lane.kill_launcher()
    lane.host.freeze(rank.pid)
    try:
        lane.attributed(rank, "orphan-proven", OURS)
        lane.host.wait_until(f"{STATE % rank.pid} | grep -qx D")
        lane.daemon.wait(lambda: len(lane.signals(rank)) == 2, "TERM and KILL were sent", 60, lane.name)
        lane.daemon.wait(
            lambda: lane.daemon.condition("host", HOST, "Clean")["reason"] == "UnkillableProcess", "it is told", 60
        )
        assert f"pid {rank.pid} (" in lane.daemon.condition("host", HOST, "Clean")["message"]
        lane.blocked("WaitingInGate", f"pid {rank.pid} (", "survived KILL in state D")
        lane.daemon.wait(lambda: bool(survivors(lane)), "an event", 60)
        lane.run(run=False)
        lane.daemon.reason(lane.name, "Stopped", 60)
        lane.run()
        lane.blocked("UnkillableProcess", f"pid {rank.pid} (", "survived KILL in state D")
        told = lane.signals(rank)
        lane.left_alone_since(rank, told)
        assert [e["action"] for e in told] == ["signal-term", "signal-kill"]
        assert len(survivors(lane)) == 1
        assert f"pid {rank.pid} (" in survivors(lane)[0]
        assert lane.show("ActiveState") in ("inactive", "failed")  # it was stopped in its gate
    finally:
        lane.host.thaw()
    lane.cleared(rank, "orphan-proven", OURS, ["term", "kill"])
    lane.serves_on_a_clean_card(rank)
    # Its next rank has left the unit's cgroup as well, so the host is not called clean.
    lane.daemon.wait(
        lambda: lane.daemon.condition("host", HOST, "Clean")["reason"] != "UnkillableProcess", "it is over", 60
    )


def survivors(lane: Lane) -> list[str]:
    """The events of survivors themselves, beside those of the host's condition."""
    found = [e["message"] for e in lane.daemon.events(HOST) if e["reason"] == "UnkillableProcess"]
    return [text for text in found if "no instance is started on what it holds" in text]


# ---- Z: it holds nothing, and only its parent can reap it ----


def test_a_zombie_in_the_units_cgroup_is_its_living_parents_to_reap_and_keeps_nothing_down(
    make_lane: MakeLane,
) -> None:
    lane = make_lane()
    before = lane.up()
    zombie, parent = zombie_in_unit(lane)
    lane.run(run=False)
    lane.daemon.reason(lane.name, "Stopped", 60)
    said = lane.attributed(zombie, "orphan-proven", f"in the cgroup of {lane.unit}")
    assert said["verdict"] == "DefunctProcess"
    lane.daemon.wait(lambda: bool(reapers(zombie, parent, lane)), "an event that says who must reap it", 60, lane.name)
    lane.run()
    assert lane.serves_on_a_clean_card(zombie)["invocation"] != before["invocation"]
    lane.left_alone(parent)
    assert lane.signals(zombie) == []
    assert lane.told("UnitInactive", lane.unit)["action"] == "unit-start"
    assert lane.host.sh(STATE % zombie.pid).stdout.strip() == "Z"


def reapers(zombie: Bystander, parent: Bystander, lane: Lane) -> list[str]:
    found = [e["message"] for e in lane.daemon.events(HOST) if e["reason"] == "DefunctProcess"]
    return [text for text in found if f"pid {zombie.pid} (" in text and f"pid {parent.pid}, must reap it" in text]


def zombie_in_unit(lane: Lane) -> tuple[Bystander, Bystander]:
    """A dead child of somebody's process outside: it was in the unit's cgroup when it died."""
    path = bystanders.pid_file()
    script = (
        "import os, signal, sys\n"
        "child = os.fork()\n"
        "if child == 0: signal.pause()\n"
        f"open('{path}.new', 'w').write(f'{{child}} {{os.getpid()}}')\n"
        f"os.rename('{path}.new', '{path}')\n"
        "signal.pause()\n"
    )
    lane.host.write(f"{path}.py", script.encode())
    lane.host.sh(bystanders.detached(f"python3 {path}.py"))
    child = bystanders.started(lane.host, path)
    parent = bystanders.process(lane.host, int(lane.host.read(path).split()[1]))
    lane.host.sh(f"echo {child.pid} >/sys/fs/cgroup/system.slice/{lane.unit}/cgroup.procs; kill -KILL {child.pid}")
    lane.host.wait_until(f"{STATE % child.pid} | grep -qx Z")
    return child, parent


def test_a_zombie_goes_with_its_parent_when_that_is_an_orphan(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    parent = leftovers.over_ssh(lane.host, gpu=lane.gpu, title="sglang::scheduler", more=("--defunct",))
    zombie = int(lane.host.sh(f"cat /proc/{parent.pid}/task/{parent.pid}/children").stdout)
    assert lane.host.sh(STATE % zombie).stdout.strip() == "Z"
    lane.attributed(parent, "orphan-likely", NOBODYS)
    lane.run()
    lane.cleared(parent, "orphan-likely", NOBODYS, ["term"])
    lane.host.wait_until(f"! test -e /proc/{zombie}")
    lane.serves_on_a_clean_card(parent)
    assert not [e for e in lane.daemon.events(HOST) if e["action"] and f"{zombie} " in e["evidence"]]


# ---- a pid that somebody else has got meanwhile ----


def test_a_pid_reused_between_the_look_and_the_helpers_check_is_spared(ground: Ground, make_lane: MakeLane) -> None:
    host = ground.host
    with pid_range(host, 400):
        lane = make_lane(env=STRAY)
        lane.up()
        with changes_wait(host):
            rank = lane.kill_launcher()
            assert 300 <= rank.pid < 400
            other = takes_its_number(rank)
        lane.daemon.wait(lambda: bool(lane.signals(rank)), "the signal is told", 60, lane.name)
        told = lane.signals(rank)
        assert [(e["action"], e["result"], e["evidence"]) for e in told] == [
            ("signal-term", "ok", f"{rank.pid} changed")
        ]
        assert f"holds GPU {lane.gpu}: orphan-proven, {OURS}" in told[0]["message"]
        lane.serves_on_a_clean_card(rank)
        assert other.alive
        assert lane.stray(other) is None
        assert lane.signals(other) == told, "no other signal was ever sent to that number"
        host.sh(f"kill -KILL {other.pid}")


@contextmanager
def pid_range(host: TestHost, top: int) -> Iterator[None]:
    """New processes of the host get numbers from 300 to `top`, as the kernel starts again at 300."""
    set_pid_max(host, top)
    try:
        yield
    finally:
        set_pid_max(host, 4194304)


def set_pid_max(host: TestHost, top: int) -> None:
    """From outside: a host's own /proc/sys is read-only. From Linux 6.14 on each pid namespace has its own range."""
    host.outside(f"mount -t proc proc /mnt && echo {top} >/mnt/sys/kernel/pid_max")
    assert host.read("/proc/sys/kernel/pid_max").strip() == str(top)


@contextmanager
def changes_wait(host: TestHost) -> Iterator[None]:
    """The helper's lock is held by somebody: every change waits in the helper, behind its decision."""
    holder = bystanders.pid_file()
    script = f"exec 9>>/var/lib/stoker/lock; flock 9; echo $$ >{holder}; while [ -e {holder} ]; do sleep 0.05; done"
    host.sh(f"setsid bash -c '{script}' >/dev/null 2>&1 </dev/null &")
    host.wait_until(f"test -s {holder}")
    try:
        yield
    finally:
        host.sh(f"rm -f {holder}")


REUSE = """
import os, signal, time

def waits():  # the helper was told to signal, and waits for its lock
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().endswith(b"/stoker-host\\0signal\\0"):
                    return True
        except OSError:
            continue

while not waits():
    time.sleep(0.02)
os.kill(PID, signal.SIGKILL)
while True:
    child = os.fork()
    if child == 0 and os.getpid() == PID:
        with open(PATH, "w") as file:
            file.write(str(PID))
        while True:
            signal.pause()
    if child == 0:
        os._exit(0)
    if child == PID:
        break
    os.waitpid(child, 0)
"""


def takes_its_number(who: Bystander) -> Bystander:
    """Somebody's process that gets the pid of `who`, which is killed once the helper is about to signal it."""
    path = bystanders.pid_file()
    script = REUSE.replace("PID", str(who.pid)).replace("PATH", repr(path))
    who.host.sh("timeout 60 python3 - >/dev/null 2>&1", stdin=script.encode())
    return bystanders.started(who.host, path)


# ---- a unit that is ending by itself ----


def test_processes_of_a_draining_unit_are_nobodys_to_end(make_lane: MakeLane) -> None:
    lane = make_lane(env={"STANDIN_LINGER_S": "6"}, stop={"timeout": "30s"})
    before = lane.up()
    main, rank = (bystanders.process(lane.host, pid) for pid in (before["main_pid"], *lane.holders()))
    lane.host.sh(f"systemctl stop --no-block {lane.unit}")
    for one in (main, rank):
        lane.attributed(one, "unknown", f"{lane.unit} is deactivating/stop-sigterm")
    lane.daemon.reason(lane.name, "UnitStopping", 30)
    assert main.alive
    lane.daemon.wait(lambda: not main.alive, "it ends by itself", 60, lane.name)
    assert "Gracefully" in lane.host.journal(lane.unit) or "kill_process_tree" in lane.host.journal(lane.unit)
    instance = lane.serves_on_a_clean_card(rank)
    assert instance["invocation"] != before["invocation"]
    assert lane.signals(main) == lane.signals(rank) == []
    lane.told("UnitStopping", lane.unit)
    assert lane.told("StoppedByHand", lane.unit)["action"] == "unit-start"
