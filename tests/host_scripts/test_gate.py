"""The gate, with stand-ins for the driver and this machine's own processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from daemon import host
from tests.host_scripts.conftest import Box

UNIT = "stoker-k26.server.service"
CARD = "GPU-00000000-aaaa-4000-8000-000000000000"
SMI = """#!/bin/sh
case $1 in
*query-gpu=*) cat {root}/gpus ;;
*) cat {root}/apps ;;
esac
"""


class Gate:
    """One gate with its box."""

    def __init__(self, box: Box) -> None:
        self.box = box
        box.tool("nvidia-smi", SMI.format(root=box.root))
        self.gpus(f"0, {CARD}, 4\n")
        self.inside_container(False)
        self.apps("")
        self.manifest(f"gpu 0 {CARD}\n")

    def inside_container(self, inside: bool) -> None:
        if inside:
            self.gpus(f"0, {CARD}, 21093\n")
        self.box.tool("systemd-detect-virt", f"#!/bin/sh\nexit {0 if inside else 1}\n")

    def gpus(self, text: str) -> None:
        new = self.box.path("gpus.new")  # a gate that polls never sees half of it
        new.write_text(text, encoding="utf-8")
        new.replace(self.box.path("gpus"))

    def apps(self, text: str) -> None:
        self.box.path("apps").write_text(text, encoding="utf-8")

    def manifest(self, text: str, unit: str = UNIT) -> None:
        folder = self.box.path("state/units")
        folder.mkdir(exist_ok=True)
        (folder / unit).write_text(text, encoding="utf-8")

    def command(self) -> list[str]:
        more = {"CARDS": f"'{self.box.root}/dev/nvidia[0-9]*'", "POLL_S": "0.02", "SAY_EVERY": "5", "LIMIT_S": "1"}
        script = self.box.script(host.gate_text(), **self.box.constants(), **more)
        return ["/bin/sh", str(script), UNIT]

    def opens(self) -> str:
        """What it says while it opens by itself."""
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0
        return done.stdout

    @contextmanager
    def waiting(self) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """A gate that waits, with the first line it said."""
        with subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert process.poll() is None
            try:
                yield first, process
            finally:
                process.kill()


@pytest.fixture
def gate(box: Box) -> Gate:
    """A gate of a unit with one card, all free."""
    return Gate(box)


def holding(box: Box, *command: str) -> Iterator[int]:
    """The pid of that command with a device open, until it is asked for again."""
    device = box.path("dev/nvidia0")
    device.touch()
    with device.open("rb") as opened:
        process = subprocess.Popen(command, stdin=opened, start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def holder(box: Box) -> Iterator[int]:
    """A process with a device open."""
    yield from holding(box, "sleep", "60")


@pytest.fixture
def mps_server(box: Box) -> Iterator[int]:
    """The server of CUDA MPS, as the kernel names it, with a device open."""
    program = box.path("nvidia-cuda-mps-server")
    shutil.copy2(shutil.which("sleep") or "/bin/sleep", program)
    yield from holding(box, str(program), "60")


def test_free_gpus_open_without_a_word(gate: Gate) -> None:
    assert gate.opens() == ""


def test_holder_keeps_it_closed_and_is_named(gate: Gate, holder: int) -> None:
    gate.apps(f"{CARD}, {holder}, some, name, 21090\n")
    with gate.waiting() as (said, process):
        assert f"waits for pid {holder} (sleep 60 ) of user" in said
        assert "21090 MiB" in said
        gate.apps("")
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(timeout=20) == 0
    assert rest.splitlines()[-1].startswith("stoker gate: opens after waiting")


@pytest.mark.strays
def test_a_card_that_stoker_found_unusable_keeps_it_closed_until_it_is_well(gate: Gate) -> None:
    note = gate.box.path("run/unusable")
    note.write_text(f"GPU-other\n{CARD}\n", encoding="ascii")
    with gate.waiting() as (said, process):
        assert f"waits for GPU {CARD} to be usable again" in said
        note.write_text("GPU-other\n", encoding="ascii")
        assert process.wait(timeout=20) == 0


@pytest.mark.strays
def test_a_card_that_was_called_unusable_long_ago_keeps_nobody_out(gate: Gate) -> None:
    """The daemon that said so is dead: its word is renewed by every look."""
    note = gate.box.path("run/unusable")
    note.write_text(f"{CARD}\n", encoding="ascii")
    long_ago = note.stat().st_mtime - 3600
    os.utime(note, (long_ago, long_ago))
    assert gate.opens() == ""


def test_a_unit_that_is_given_another_card_while_it_waits_waits_for_that_one(gate: Gate, holder: int) -> None:
    gate.apps(f"{CARD}, {holder}, python3, 21090\n")
    with gate.waiting() as (_, process):
        gate.manifest("gpu 1 GPU-other\n")
        assert process.wait(timeout=20) == 0


def test_it_says_again_for_whom_it_waits(gate: Gate, holder: int) -> None:
    gate.apps(f"{CARD}, {holder}, python3, 21090\n")
    with gate.waiting() as (said, process):
        assert process.stdout is not None
        assert process.stdout.readline() == said


@pytest.mark.strays
def test_memory_that_falls_is_waited_for_and_named(gate: Gate) -> None:
    gate.gpus(f"0, {CARD}, 98304\n")
    with gate.waiting() as (said, process):
        assert f"memory to come back: 98304 MiB on GPU {CARD}, held by nobody seen" in said
        assert process.stdout is not None
        for mib in (80_000, 41_000, 20_000):
            gate.gpus(f"0, {CARD}, {mib}\n")
            while f"{mib} MiB" not in process.stdout.readline():
                assert process.poll() is None, "it gave up while the memory fell"
        gate.gpus(f"0, {CARD}, 4\n")
        rest = process.stdout.read()
        assert process.wait(timeout=20) == 0
    assert rest.splitlines()[-1].startswith("stoker gate: opens after waiting")
    assert "opens beside" not in rest


@pytest.mark.strays
def test_memory_that_never_falls_keeps_it_closed_for_a_while_only(gate: Gate) -> None:
    gate.gpus(f"0, {CARD}, 21093\n")
    said = gate.opens().splitlines()
    assert len([line for line in said if "memory to come back" in line]) == 3
    assert f"opens beside 21093 MiB on GPU {CARD}, held by nobody seen" in said[-2]


@pytest.mark.strays
def test_memory_that_a_row_explains_or_that_has_no_figure_is_not_waited_for(gate: Gate) -> None:
    """A14: unified memory tells no figure; a row of a pid that is nobody here explains its own."""
    gate.gpus(f"0, {CARD}, [N/A]\n")
    assert gate.opens() == ""
    gate.gpus(f"0, {CARD}, 21093\n")
    gate.apps(f"{CARD}, 999999999, python3, 21090\n")
    assert gate.opens() == ""


def test_holder_of_another_card_does_not_matter(gate: Gate, holder: int) -> None:
    gate.apps(f"GPU-other, {holder}, python3, 21090\n")
    assert gate.opens() == ""


@pytest.mark.parametrize("pid", ["99999999", "1", "x", "", "-1", "[N/A]"])
def test_row_that_names_nobody_here_does_not_matter(gate: Gate, pid: str) -> None:
    gate.apps(f"{CARD}, {pid}, python3, 21090\n")
    assert gate.opens() == ""


def test_small_share_of_no_managed_unit_matters(gate: Gate, holder: int) -> None:
    gate.apps(f"{CARD}, {holder}, python3, 518\n")
    with gate.waiting() as (said, _):
        assert f"pid {holder}" in said


def test_the_small_share_of_the_mps_server_does_not_matter(gate: Gate, mps_server: int) -> None:
    """B15: it is on the card for the sake of its clients."""
    gate.apps(f"{CARD}, {mps_server}, nvidia-cuda-mps-server, 30\n")
    assert gate.opens() == ""
    gate.apps(f"{CARD}, {mps_server}, nvidia-cuda-mps-server, 21090\n")
    with gate.waiting() as (said, _):
        assert f"pid {mps_server}" in said


def test_moved_card_keeps_it_closed(gate: Gate) -> None:
    gate.gpus(f"0, GPU-other\n1, {CARD}\n")
    with gate.waiting() as (said, _):
        assert "GPU index 0 shows GPU-other" in said


def test_listener_on_its_port_keeps_it_closed(gate: Gate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        gate.manifest(f"port {port}\n")
        with gate.waiting() as (said, process):
            assert f"pid {os.getpid()} " in said
            assert f"port {port}" in said
            server.close()
            assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    "script",
    ["echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "exec sleep 30", "kill -9 $$"],
)
def test_when_it_cannot_tell_it_opens_and_says_so(gate: Gate, script: str) -> None:
    gate.box.tool("nvidia-smi", f"#!/bin/sh\n{script}\n")
    assert "opens without knowing the GPUs" in gate.opens()


def test_without_the_tool_it_opens(gate: Gate) -> None:
    (gate.box.root / "bin" / "nvidia-smi").unlink()
    assert "there is no nvidia-smi" in gate.opens()


def test_without_a_manifest_it_opens(gate: Gate) -> None:
    gate.box.path(f"state/units/{UNIT}").unlink()
    assert "no manifest" in gate.opens()


def test_blind_for_gpus_it_still_watches_its_port(gate: Gate) -> None:
    gate.box.tool("nvidia-smi", "#!/bin/sh\nexit 9\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        gate.manifest(f"gpu 0 {CARD}\nport {server.getsockname()[1]}\n")
        with gate.waiting() as (said, _):
            assert "listens on port" in said


@pytest.mark.parametrize("rows", ["", f"{CARD}, 99999999, python3, 21090\n"], ids=["no rows", "a pid of the host"])
def test_in_a_container_who_has_a_card_open_keeps_it_closed_while_ours_is_in_use(
    gate: Gate, holder: int, rows: str
) -> None:
    gate.inside_container(True)
    gate.apps(rows)
    with gate.waiting() as (said, process):
        assert f"waits for pid {holder} (sleep 60 ) of user" in said
        assert f"GPU {CARD}, 21093 MiB are held" in said
        gate.gpus(f"0, {CARD}, 3\n")
        assert process.wait(timeout=20) == 0


def test_in_a_container_a_pid_of_the_host_names_no_wrong_process(gate: Gate, holder: int) -> None:
    gate.inside_container(True)
    gate.apps(f"{CARD}, 99999999, python3, 21090\nGPU-other, {os.getpid()}, python3, 21090\n")
    with gate.waiting() as (said, _):
        assert f"waits for pid {holder} " in said
        assert f"pid {os.getpid()} " not in said


def test_in_a_container_a_card_in_use_by_nobody_here_does_not_matter(gate: Gate) -> None:
    gate.inside_container(True)
    gate.apps(f"{CARD}, 99999999, python3, 21090\n")
    assert gate.opens() == ""


def test_in_a_container_rows_that_all_name_somebody_here_are_believed(gate: Gate, holder: int) -> None:
    gate.inside_container(True)
    gate.apps(f"{CARD}, {holder}, python3, 21090\n")
    with gate.waiting() as (said, _):
        assert f"pid {holder} (sleep 60 ) of user" in said
        assert "which holds GPU" in said
