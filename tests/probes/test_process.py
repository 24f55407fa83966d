"""What /proc shows, hostile names included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.probes.process import (
    Facts,
    Malformed,
    arguments,
    cgroup_path,
    parse_environ,
    parse_nvidia_files,
    parse_processes,
    parse_uids,
)


def one(comm: bytes, cmdline: bytes, cgroup: bytes = b"0::/x\n") -> bytes:
    """The section of pid 7 as `grep -aHZ ''` prints it: each line of each file behind the file's name."""
    stat = b"7 (" + comm + b") S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n"
    files = [(b"/proc/7/stat", stat), (b"/proc/7/cgroup", cgroup), (b"/proc/7/cmdline", cmdline)]
    lines = [(name, line) for name, data in files if data for line in data.removesuffix(b"\n").split(b"\n")]
    return b"".join(name + b"\0" + line + b"\n" for name, line in lines)


FACTS = Facts(uids={7: 0}, users={}, environ={}, readable=frozenset())


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_any_name_leaves_the_numbers_alone(comm: bytes) -> None:
    (process,) = parse_processes(one(comm, b""), (7,), frozenset(), FACTS)
    assert (process.id.start_ticks, process.ppid, process.pgrp, process.state) == (4242, 1, 7, "S")
    assert process.comm == comm.decode("utf-8", "replace")


@given(st.lists(st.binary(max_size=20).filter(lambda arg: b"\0" not in arg), min_size=1, max_size=6))
def test_any_arguments_come_out_as_they_were(argv: list[bytes]) -> None:
    (process,) = parse_processes(one(b"x", b"".join(arg + b"\0" for arg in argv)), (7,), frozenset(), FACTS)
    told = tuple(arg.decode("utf-8", "replace") for arg in argv)
    assert process.argv == told or argv[-2:] == [b"", b""]


def test_argument_that_forges_another_process_is_text() -> None:
    forged = b"a\n/proc/8/stat\0008 (root) S 1 8 8\0"
    (process,) = parse_processes(one(b"x", forged), (7,), frozenset(), FACTS)
    assert process.argv == ("a\n/proc/8/stat", "8 (root) S 1 8 8")


def test_name_is_cut_at_fifteen_characters_and_the_title_is_whole() -> None:
    (process,) = parse_processes(one(b"VLLM::EngineCor", b"VLLM::EngineCore\0"), (7,), frozenset(), FACTS)
    assert (process.comm, process.argv) == ("VLLM::EngineCor", ("VLLM::EngineCore",))


def test_zombie_has_no_arguments_and_unread_marks() -> None:
    (process,) = parse_processes(one(b"python3", b"").replace(b") S ", b") Z "), (7,), frozenset(), FACTS)
    assert (process.state, process.argv, process.marks) == ("Z", (), None)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"0::/system.slice/a.service", "/system.slice/a.service"),
        (b"0::/system.slice/a.service (deleted)", "/system.slice/a.service"),
        (b"9:name=systemd:/system.slice/a.service\n4:memory:/other\n0::/", "/system.slice/a.service"),
        (b"4:memory:/other\n1:name=systemd:/a:b", "/a:b"),
        (b"0::/..", "/.."),
        (b"4:memory:/other", ""),
    ],
)
def test_cgroup_is_that_of_systemds_hierarchy(content: bytes, path: str) -> None:
    assert cgroup_path(content) == path


def test_overwritten_title_loses_its_padding_and_an_empty_argument_stays() -> None:
    assert arguments(b"postgres: idle") == ("postgres: idle",)
    assert arguments(b"sglang::scheduler_TP0" + bytes(60)) == ("sglang::scheduler_TP0",)
    assert arguments(b"a\0\0") == ("a", "")
    assert arguments(b"\0") == ("",)


def test_first_of_two_equal_names_counts() -> None:
    data = b"/proc/7/environ\0STOKER_STORE=a\0/proc/7/environ\0STOKER_STORE=b\0"
    assert parse_environ(data) == {7: (("STOKER_STORE", "a"),)}


def test_half_a_pair_is_refused() -> None:
    for data in (b"/proc/7/environ", b"/proc/7/environ\0", b"/proc/7/environ\0A=b", b"a\0b\0c\0"):
        with pytest.raises(Malformed):
            parse_environ(data)


def test_minor_numbers_are_of_cards_alone() -> None:
    data = b"7 nvidiactl\n7 nvidia-uvm\n7 nvidia12\n8 nvidia-uvm\n"
    assert parse_nvidia_files(data) == {7: {12}, 8: frozenset()}


def test_uid_without_number_is_refused() -> None:
    with pytest.raises(Malformed):
        parse_uids(b"/proc/7/status:Uid:\n")
