"""What systemd's tools print."""

from __future__ import annotations

import hashlib
import json

import pytest

from daemon.domain.observation import Loaded, Unknown
from daemon.probes.process import Malformed
from daemon.probes.systemd import (
    INFINITE_US,
    parse_dropins,
    parse_files,
    parse_loaded,
    parse_manager,
    parse_show,
    timespan_us,
    unit,
)
from tests.probes.reference import show


@pytest.mark.parametrize(
    ("text", "span_us"),
    [
        ("1min 30s", 90_000_000),
        ("infinity", INFINITE_US),
        ("0", 0),
        ("", 0),
        ("500ms", 500_000),
        ("1h 2min 3.500000s", 3_723_500_000),
        ("1w 1d", 691_200_000_000),
        ("1.5s", 1_500_000),
    ],
)
def test_time_span(text: str, span_us: int) -> None:
    assert timespan_us(text) == span_us


def test_time_span_of_another_form_is_refused() -> None:
    with pytest.raises(Malformed):
        timespan_us("soon")


def test_unit_that_does_not_exist_is_told_by_its_load_state() -> None:
    text = "Id=nope.service\nNames=nope.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n"
    text += "MainPID=0\nNeedDaemonReload=no\nTimeoutStopUSec=1min 30s\nInvocationID=\nNRestarts=[not set]\n"
    (values,) = parse_show(text.encode(), ["nope.service"])
    found = unit("nope.service", values, Loaded((), (), "", ""), None, None)
    assert (found.load_state, found.loaded, found.running) == ("not-found", None, False)


def test_fewer_units_than_asked_for_are_refused() -> None:
    with pytest.raises(Malformed):
        parse_show(show("a.service", 1).encode(), ["a.service", "b.service"])


def test_alias_is_its_unit() -> None:
    text = show("a.service", 1).replace("Names=a.service", "Names=a.service alias.service")
    assert parse_show(text.encode(), ["alias.service"])[0]["MainPID"] == "1"


def test_block_of_another_unit_is_refused() -> None:
    with pytest.raises(Malformed):
        parse_show(show("a.service", 1).encode(), ["b.service"])


def loaded_text(*values: object) -> bytes:
    return b"= a.service\n" + b"".join(json.dumps({"type": "x", "data": value}).encode() + b"\n" for value in values)


def test_argv_keeps_its_words() -> None:
    argv = ["/bin/sh", "-c", "echo a  b", "", "= b.service", "ü\n"]
    found = parse_loaded(loaded_text([["/bin/sh", argv, False, 0, 0, 0, 0, 0, 0, 0]], ["A=1"], "u", ""))["a.service"]
    assert found == Loaded(tuple(argv), (("A", "1"),), "u", "")


def test_unit_without_a_command_has_no_argv() -> None:
    assert parse_loaded(loaded_text([], [], "", ""))["a.service"] == Loaded((), (), "", "")


@pytest.mark.parametrize("data", [b"= a.service\n", b"= a.service\n{\n", loaded_text([], [], "")])
def test_cut_properties_are_unknown(data: bytes) -> None:
    assert isinstance(parse_loaded(data)["a.service"], Unknown)


def test_unit_file_has_the_hash_of_its_bytes() -> None:
    texts = {b"/e/a.service": b"x\xff"}
    files = parse_files("a.service /e/a.service present\nb.service /e/b.service absent\nc.service /e/c other\n", texts)
    assert (files["a.service"].text, files["a.service"].sha256) == ("x\ufffd", hashlib.sha256(b"x\xff").hexdigest())
    assert (files["b.service"].text, files["c.service"].text) == (None, None)


def test_dropins_are_told_by_unit_with_their_text_and_an_empty_one_is_empty() -> None:
    folder = "/etc/systemd/system/a.service.d"
    found = parse_dropins(
        f"a.service {folder}/x.conf\na.service {folder}/y.conf\n", {f"{folder}/x.conf".encode(): b"[S]\n"}
    )
    assert [(one.path, one.text) for one in found["a.service"]] == [
        (f"{folder}/x.conf", "[S]\n"),
        (f"{folder}/y.conf", ""),
    ]
    assert found["a.service"][0].sha256 == hashlib.sha256(b"[S]\n").hexdigest()
    assert parse_dropins("", {}) == {}
    for line in ("a.service\n", "a.service x.conf\n"):
        with pytest.raises(Malformed):
            parse_dropins(line, {})


def test_what_every_unit_inherits_is_read_by_name_and_never_an_empty_answer() -> None:
    line = json.dumps({"type": "as", "data": ["LANG=C", "A=b=c", "EMPTY="]})
    assert parse_manager(f"= a.service\n1\n= manager\n{line}\n".encode()) == {"LANG", "A", "EMPTY"}
    with pytest.raises(Malformed):
        parse_manager(b"= a.service\n1\n")
    for cut in ("", line[:-3], "{}"):
        with pytest.raises((ValueError, KeyError)):
            parse_manager(f"= manager\n{cut}".encode())


def test_a_link_in_a_units_place_is_known_as_one() -> None:
    files = parse_files("a.service /e/a.service other\nb.service /e/b.service absent\n", {})
    assert [(name, file.text, file.link) for name, file in files.items()] == [
        ("a.service", None, True),
        ("b.service", None, False),
    ]
