"""The frame of an answer, and law 1 for every section of a look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.observation import Observation, Session, Unknown
from daemon.domain.status import Reason
from daemon.probes.report import SUMMED_FROM, Answer, Section, failure, parse_answer, parse_observation
from tests.probes.reference import INVOCATION, NONCE, OTHERS, UNITS, frame, sections, summed

LOOK = frame(sections(), version=SUMMED_FROM)
SMALL = frame(
    {"one": (0, b"some\nlines\n"), "two": (3, b""), "three": (0, b"\0@ begin\n")}, "probe", version=SUMMED_FROM
)


def answer_of(data: bytes) -> Answer:
    answer = parse_answer(data, NONCE)
    assert isinstance(answer, Answer)
    return answer


def look(changes: dict[str, tuple[int, bytes]] | None = None) -> Observation:
    found = parse_observation(answer_of(frame({**sections(), **(changes or {})})), "gpu-a", 1.0)
    assert isinstance(found, Observation)
    return found


def test_reference_look_is_known_throughout() -> None:
    seen = look()
    for value in (seen.gpus, seen.apps, seen.processes, seen.listeners, seen.units, seen.other_units, seen.sessions):
        assert not isinstance(value, Unknown)
    assert not isinstance(seen.processes, Unknown)
    assert not isinstance(seen.apps, Unknown)
    assert (len(seen.processes), len(seen.apps)) == (40, 18)
    assert seen.hold is None
    assert seen.identity.monotonic_us == 123456780000
    assert seen.sessions == (Session("3", 701), Session("5", 0))
    assert seen.other_units == tuple((name, "active") for name in (*OTHERS, *UNITS))


def test_process_has_what_proc_said() -> None:
    processes = look().processes
    assert not isinstance(processes, Unknown)
    worker = next(process for process in processes if process.id.pid == 1001)
    assert (worker.id.start_ticks, worker.ppid, worker.state, worker.user) == (1501, 1000, "S", "serve")
    assert worker.cgroup == "/system.slice/stoker-k26.prefill.service"
    assert worker.argv[2].endswith("spawn_main(0)")
    assert worker.marks == (("STOKER_LAUNCH", "v1:1001"), ("STOKER_STORE", "s1"))
    assert worker.nvidia_minors == {0}
    init = next(process for process in processes if process.id.pid == 1)
    assert (init.nvidia_open, init.marks) == (False, ())


def test_unit_has_its_layers() -> None:
    units = look().units
    assert not isinstance(units, Unknown)
    assert [unit.name for unit in units] == list(UNITS)
    unit = units[0]
    assert (unit.invocation_id, unit.main_pid, unit.timeout_stop_us, unit.job) == (INVOCATION, 1000, 90_000_000, 0)
    assert unit.loaded is not None
    assert not isinstance(unit.loaded, Unknown)
    assert unit.loaded.argv[:3] == ("/opt/venv/bin/python", "-m", "sglang.launch_server")
    assert unit.loaded.env[2] == ("A", "b=c")
    assert unit.file is not None
    assert unit.file.text is not None
    assert unit.file.text.startswith("[Service]\n")
    assert unit.main is not None
    assert dict(unit.main.env)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (unit.main.cwd, unit.main.exe) == ("/srv", "/opt/venv/bin/python3.11")


@pytest.mark.parametrize("name", sorted(set(sections()) - {"hold", "fence", "meta"}))
@pytest.mark.parametrize("exit_status", [1, 2, 27, 124, 137, 255])
def test_failed_section_is_never_an_empty_one(name: str, exit_status: int) -> None:
    before, after = look(), look({name: (exit_status, b"")})
    values = {
        key: getattr(after, key)
        for key in (
            "gpus",
            "apps",
            "health",
            "kernel",
            "space",
            "processes",
            "listeners",
            "units",
            "other_units",
            "sessions",
        )
    }
    unknown = {key for key, value in values.items() if isinstance(value, Unknown)}
    blind_units = not isinstance(after.units, Unknown) and all(
        isinstance(unit.loaded, Unknown) or unit.file is None or unit.main is None for unit in after.units
    )
    blind_marks = not isinstance(after.processes, Unknown) and all(p.marks is None for p in after.processes)
    assert unknown or blind_units or blind_marks
    assert all(values[key] == getattr(before, key) for key in set(values) - unknown - {"units", "processes"})


@pytest.mark.parametrize("name", sorted(sections()))
def test_missing_section_is_unknown(name: str) -> None:
    left = {key: value for key, value in sections().items() if key != name}
    seen = parse_observation(answer_of(frame(left)), "gpu-a", 1.0)
    assert isinstance(seen, Unknown) or seen != look()


@pytest.mark.parametrize("name", ["candidates", "uids", "processes", "environ_ok"])
def test_candidate_that_was_not_read_whole_makes_all_unknown(name: str) -> None:
    data = sections()[name][1]
    cut = data[: data.rfind(b"\n", 0, -2) + 1] if name in ("uids", "processes") else data.rstrip()[:-2] + b"x\n\n"
    processes = look({name: (0, cut)}).processes
    assert isinstance(processes, Unknown) or all(process.marks is None for process in processes)


def test_candidate_that_ended_meanwhile_is_left_out() -> None:
    pids = sections()["candidates"][1].split(b"\n")[0]
    processes = look({"candidates": (0, pids + b" 4242\n 4242\n")}).processes
    assert not isinstance(processes, Unknown)
    assert len(processes) == 40


def test_a_tool_that_failed_without_a_word_is_told_by_its_exit_status_alone() -> None:
    for text, told in ((b"", "peer: exit status 7"), (b" no\n", "peer: exit status 7: no")):
        assert failure(Section("peer", 7, 1, text), "peer") == Unknown(Reason.TOOL_FAILED, told)


def test_failed_helper_makes_the_look_unknown() -> None:
    data = frame({"error": (0, b"no room\n")}, end=1)
    seen = parse_observation(answer_of(data), "gpu-a", 1.0)
    assert isinstance(seen, Unknown)
    assert "no room" in seen.detail


def test_bus_that_does_not_answer_is_named() -> None:
    for said in (
        b"Failed to connect to bus: No medium found\n",
        b"Failed to connect to bus: Permission denied\n",
        b"Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS not defined\n",
    ):
        units = look({"units": (1, said)}).units
        assert isinstance(units, Unknown)
        assert units.reason is Reason.BUS_UNAVAILABLE


def test_greeting_before_and_noise_behind_change_nothing() -> None:
    noisy = b"welcome to gpu-07!\n\xff@begin no newline" + LOOK + b"logout\n@" + NONCE.encode() + b" section x"
    assert answer_of(noisy) == answer_of(LOOK)


def test_one_changed_digit_makes_the_whole_answer_unknown() -> None:
    at = LOOK.index(b"(python3) S 1000") + 12
    spoiled = LOOK[:at] + b"9" + LOOK[at + 1 :]
    found = parse_answer(spoiled, NONCE)
    assert isinstance(found, Unknown)
    assert "damaged" in found.detail


def test_answer_of_an_older_helper_needs_no_sum_and_a_newer_one_does() -> None:
    said, _, _ = frame(sections(), version=SUMMED_FROM - 1).rpartition(b"@")
    assert isinstance(parse_answer(said, NONCE), Answer)
    said, _, _ = frame(sections(), version=SUMMED_FROM).rpartition(b"@")
    assert isinstance(parse_answer(said, NONCE), Unknown)
    assert isinstance(parse_answer(summed(said), NONCE), Answer)


def test_answer_of_another_nonce_is_none() -> None:
    assert isinstance(parse_answer(LOOK, "f" * 32), Unknown)


def test_hostile_payload_cannot_end_the_answer() -> None:
    payload = b"@" + NONCE.encode() + b" end exit=0\n"
    answer = answer_of(frame({"evil": (0, payload), "next": (0, b"x")}))
    assert set(answer.sections) == {"evil", "next"}
    assert answer.sections["evil"].data == payload


@given(st.integers(0, len(SMALL) - 1))
def test_truncated_answer_is_no_answer(length: int) -> None:
    assert isinstance(parse_answer(SMALL[:length], NONCE), Unknown)


@given(st.integers(0, len(SMALL)), st.integers(1, 40), st.binary(max_size=30))
def test_lost_or_added_bytes_never_change_a_section(at: int, lost: int, added: bytes) -> None:
    spoiled = SMALL[:at] + added + SMALL[at + (0 if added else lost) :]
    answer = parse_answer(spoiled, NONCE)
    if isinstance(answer, Answer):
        for name, section in answer_of(SMALL).sections.items():
            assert name not in answer.sections or answer.sections[name].data == section.data


@given(st.data())
def test_no_bytes_make_the_parsers_raise(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(sections())))
    original = sections()[name][1]
    at = data.draw(st.integers(0, len(original)))
    spoiled = original[:at] + data.draw(st.binary(max_size=12)) + original[at + data.draw(st.integers(0, 12)) :]
    parse_observation(answer_of(frame({**sections(), name: (0, spoiled)})), "gpu-a", 1.0)


@given(st.binary(max_size=300))
def test_no_answer_makes_the_parser_raise(data: bytes) -> None:
    parse_answer(data, NONCE)
    parse_answer(f"@{NONCE} begin observe 1\n".encode() + data, NONCE)


@given(st.data())
def test_section_cut_at_a_tool_is_unknown_or_whole(data: st.DataObject) -> None:
    """Where a tool's own output stops inside a process, all processes are unknown; never one fewer."""
    original = sections()["processes"][1]
    cut = original[: data.draw(st.integers(0, len(original) - 1))]
    processes = look({"processes": (0, cut)}).processes
    whole = look().processes
    assert isinstance(processes, Unknown) or processes == whole
