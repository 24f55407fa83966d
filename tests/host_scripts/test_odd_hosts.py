"""The look on hosts that are not whole: tools of busybox, a hidden process table, a process namespace of its own.

What cannot be seen there is unknown: never an empty answer, and never another one than on the same host seen whole.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon import host
from daemon.domain.observation import Observation, Process, Unknown
from daemon.probes.report import Answer, parse_answer, parse_observation
from tests.host_scripts.conftest import NONCE, Box
from tests.host_scripts.test_observe import holding, look, with_driver
from tests.probes.reference import uuid

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
NOBODY = 65534


def look_in(box: Box, *around: str, lines: Sequence[str] = ()) -> Observation:
    """The look by a helper that these words stand before."""
    request = "".join(f"{line}\n" for line in (f"nonce {NONCE}", "limit-ms 5000", *lines, "."))
    command = [*around, "/bin/sh", str(box.helper()), "observe"]
    done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=60, check=False)
    answer = parse_answer(done.stdout, NONCE)
    assert isinstance(answer, Answer), (answer, done)
    seen = parse_observation(answer, "a", 1.0)
    assert isinstance(seen, Observation)
    return seen


def by_pid(seen: Observation) -> dict[int, Process] | None:
    return None if isinstance(seen.processes, Unknown) else {process.id.pid: process for process in seen.processes}


def test_the_helper_asks_no_tool_that_differs_between_versions_of_procps_and_busybox() -> None:
    """B05: ps cuts names, busybox's ps has other columns; /proc is read instead."""
    code = re.sub(r"(?m)^\s*#.*$", "", host.helper_text().decode() + host.gate_text().decode())
    for tool in ("ps", "pgrep", "pidof", "pkill", "killall", "fuser", "lsof"):
        assert not re.search(rf"(?m)(^|[;&|({{]|\$\(|then|do|else|!)\s*{tool}(\s|$)", code), tool


@pytest.mark.parametrize("applets", [
    ("find",), ("grep",), ("awk",), ("tr", "head", "tail", "sed"), ("stat", "sha256sum", "cat", "wc"), ("timeout",),
    ("mktemp", "rm", "mkdir", "mv"), ("find", "grep", "awk", "tr", "head", "tail", "sed", "stat", "cat", "wc", "sort"),
])  # fmt: skip
def test_tools_of_busybox_give_the_same_look_or_an_unknown_one(box: Box, applets: tuple[str, ...]) -> None:
    mark = {"STOKER_STORE": "s1", "STOKER_LAUNCH": "v1:ab"}
    with holding(box, "sleep", "60", env=mark) as pid:
        with_driver(box, f"{uuid(0)}, {pid}, a, b, 818")
        whole = look(box)
        for applet in applets:
            (box.path("bin") / applet).symlink_to("/bin/busybox")
        odd = look_in(box)
    before, after = by_pid(whole), by_pid(odd)
    assert before is not None
    assert (odd.gpus, odd.apps) == (whole.gpus, whole.apps) or isinstance(odd.gpus, Unknown)
    if after is not None:
        assert (after[pid].argv, after[pid].cgroup) == (before[pid].argv, before[pid].cgroup)
        assert (after[pid].nvidia_minors, after[pid].user) == (before[pid].nvidia_minors, before[pid].user)
        assert after[pid].marks in (before[pid].marks, None)


def test_a_hidden_process_table_makes_processes_and_listeners_unknown(box: Box) -> None:
    """hidepid=2: a user sees its own processes alone, and no first one."""
    for folder, _, files in os.walk(box.root):
        os.chown(folder, NOBODY, NOBODY)
        for name in files:
            os.chown(Path(folder) / name, NOBODY, NOBODY)
    for above in [box.root, *box.root.parents][:-1]:
        if above.name.startswith(("pytest-", "test_")):
            above.chmod(0o755)
    text = (
        'mount -t proc -o hidepid=2 proc /proc && { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }; exit $?'
    )
    seen = look_in(box, "unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", text, "sh")
    assert isinstance(seen.processes, Unknown)
    assert isinstance(seen.listeners, Unknown)


def test_pids_of_another_namespace_are_nobody_here(box: Box) -> None:
    """A20: in a container the driver names pids of the machine: 1 and the helper's own number exist in both."""
    with holding(box, "sleep", "60") as outside:
        with_driver(box, f"{uuid(0)}, {outside}, [Not Found], 21090", f"{uuid(0)}, 99999999, [Not Found], 7")
        around = ("unshare", "--mount", "--pid", "--fork", "--mount-proc")
        seen = look_in(box, *around, lines=("whole-table 1",))
    assert not isinstance(seen.apps, Unknown)
    assert [app.pid for app in seen.apps] == [outside, 99999999]
    inside = by_pid(seen)
    assert inside is not None
    assert 1 in inside
    assert outside not in inside
    assert not any(process.nvidia_open for process in inside.values())
