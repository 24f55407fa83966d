"""Unit texts: golden files for people, and the text read back as systemd would read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.spec import Role
from daemon.engines.launch import Launch
from daemon.engines.unit import ParsedUnit, dropin_text, gate_manifest, parse_unit, unit_text
from tests.engines.hostile import HOSTILE_ARGS
from tests.engines.specs import CUSTOM, KIMI, MARKS, PAIR, VLLM, launched, spec_of

GOLDEN = Path(__file__).parent.parent / "golden" / "units"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True).filter(lambda name: not name.startswith("STOKER_"))


def parsed(text: str) -> ParsedUnit:
    """The text read back, without the marks."""
    unit = parse_unit(text)
    env = None if unit.env is None else tuple(sorted(p for p in unit.env if not p[0].startswith("STOKER_")))
    return replace(unit, env=env)


def expected(launch: Launch) -> ParsedUnit:
    return ParsedUnit(launch.argv, launch.env, launch.user, launch.working_directory)


@pytest.mark.parametrize(
    ("name", "text", "role"),
    [
        ("kimi", KIMI, "server"),
        ("pair.prefill", PAIR, "prefill"),
        ("pair.decode", PAIR, "decode"),
        ("pair.router", PAIR, "router"),
        ("vllm", VLLM, "server"),
        ("custom", CUSTOM, "server"),
    ],
)
def test_unit_is_the_golden_one(name: str, text: str, role: Role) -> None:
    spec = spec_of(text)
    written = unit_text(launched(spec, role), MARKS, spec.role_view(role), f"stoker-{name}.service")
    assert written == (GOLDEN / f"{name}.service").read_text(encoding="utf-8")


def test_dropin_is_the_golden_one() -> None:
    spec = spec_of(KIMI, unit="sglang-k26.service")
    written = dropin_text(launched(spec), MARKS, spec, "sglang-k26.service")
    assert written == (GOLDEN / "kimi-adopted.conf").read_text(encoding="utf-8")


@given(
    args=st.lists(TEXT, max_size=6),
    env=st.dictionaries(NAMES, TEXT, max_size=4),
    user=st.sampled_from([None, "serve"]),
    folder=st.sampled_from([None, "/srv/a b/50%/“x”"]),
)
def test_whatever_is_launched_is_read_back(
    args: list[str], env: dict[str, str], user: str | None, folder: str | None
) -> None:
    env |= {"SPT_NOENV": "1", "CUDA_VISIBLE_DEVICES": "0"}
    launch = Launch(("/opt/my venv/bin/python", *args), tuple(sorted(env.items())), user, folder, ())
    assert parsed(unit_text(launch, MARKS, spec_of(KIMI), "x.service")) == expected(launch)
    adopted = parsed(dropin_text(launch, MARKS, spec_of(KIMI), "x.service"))
    assert (adopted.argv, adopted.env) == (launch.argv, launch.env)
    assert (adopted.user, adopted.working_directory) == (user or "", folder or "")


def test_hostile_arguments_and_values_are_read_back() -> None:
    env = tuple(sorted({f"V{i}": arg for i, arg in enumerate(HOSTILE_ARGS)}.items()))
    launch = Launch(("/bin/x", *HOSTILE_ARGS), (*env, ("SPT_NOENV", "1")), None, None, ())
    read = parsed(unit_text(launch, MARKS, spec_of(KIMI), "x.service"))
    assert read.argv == launch.argv
    assert dict(read.env or ()) == dict(launch.env)


def test_marks_are_in_the_environment() -> None:
    env = dict(parse_unit(unit_text(launched(spec_of(KIMI)), MARKS, spec_of(KIMI), "x.service")).env or ())
    assert {name: env[name] for name in env if name.startswith("STOKER_")} == {
        "STOKER_STORE": "store-uid",
        "STOKER_SPEC": "spec-uid",
        "STOKER_LAUNCH": "v1:0123",
    }


def test_a_hub_id_needs_no_mount() -> None:
    spec = spec_of(VLLM)
    assert "RequiresMountsFor" not in unit_text(launched(spec), MARKS, spec, "x.service")


def test_a_router_gets_longer_than_it_drains() -> None:
    spec = spec_of(PAIR)
    assert "TimeoutStopSec=190s" in unit_text(launched(spec, "router"), MARKS, spec.role_view("router"), "x.service")


def service(*lines: str) -> ParsedUnit:
    return parse_unit("\n".join(["[Unit]", "ExecStart=/not/here", "[Service]", *lines, "[Install]", "User=nobody"]))


def test_comments_and_continued_lines_are_joined() -> None:
    unit = service("# User=a", "ExecStart=/bin/x \\", "# in between", "  ; too", "  one \\", "  two", "User = serve ")
    assert unit.argv == ("/bin/x", "one", "two")
    assert unit.user == "serve"


def test_an_empty_assignment_resets_and_the_last_value_wins() -> None:
    unit = service("ExecStart=/bin/a", "ExecStart=", "ExecStart=/bin/b", "Environment=A=1 B=2", "Environment=A=3")
    assert unit.argv == ("/bin/b",)
    assert unit.env == (("A", "3"), ("B", "2"))
    assert service("Environment=A=1", "Environment=", "Environment=B=2").env == (("B", "2"),)


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/bin/x %h",
        "ExecStart=/bin/x $HOME",
        "ExecStart=/bin/x 'open",
        "ExecStart=/bin/x ; /bin/y",
        "ExecStart=/bin/x\nExecStart=/bin/y",
        "ExecStart=",
    ],
)
def test_argv_that_only_the_host_knows_is_none(line: str) -> None:
    assert service(line).argv is None


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("ExecStart=/bin/x $$HOME", ("/bin/x", "$HOME")),
        ("ExecStart=:/bin/x $HOME", ("/bin/x", "$HOME")),
        ("ExecStart=-/bin/x a", ("/bin/x", "a")),
        ("ExecStart=@/bin/x title a", ("title", "a")),
        ("ExecStart=:/bin/x ';' a", ("/bin/x", ";", "a")),
    ],
)
def test_prefixes_and_dollars_are_systemds(line: str, argv: tuple[str, ...]) -> None:
    assert service(line).argv == argv


def test_an_absent_setting_is_none_but_an_absent_environment_is_empty() -> None:
    assert parse_unit("") == ParsedUnit(None, (), None, None)
    assert service("Environment='A=open").env is None


def test_gate_manifest_names_cards_and_ports() -> None:
    assert gate_manifest(((0, "GPU-a"), (3, "GPU-b")), (30001,)) == "gpu 0 GPU-a\ngpu 3 GPU-b\nport 30001\n"
    assert gate_manifest((), ()) == ""
