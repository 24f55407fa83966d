"""Spelling commands: what arrives is what was sent, through every layer; what the layers say is understood."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon import host
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh.argv import (
    HELPER_PATH,
    Finished,
    Wrap,
    command_line,
    helper_refusal,
    login_quote,
    refusal,
    wrap_of,
    wrapped,
)

HOSTILE = (
    "a b", "it's", 'say "x"', "back\\slash", "\\'", "\\", "'", "hi!there", "!!", "$HOME `id` $(id)", "", "-n", "--",
    "*", "a\tb", "{a,b}", "~", "%1", "\\n", "é☃", ";reboot", "a=b", "#x", "new\nline", "&& x", "\x01",
)  # fmt: skip
PRINT_ALL = ("printf", "%s\\0")
text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


def told_by_sh(line: str) -> list[str]:
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True, timeout=10)
    return done.stdout.decode().split("\0")[:-1]


def test_hostile_words_survive_the_login_shell_and_sh() -> None:
    assert told_by_sh(command_line([*PRINT_ALL, *HOSTILE])) == list(HOSTILE)


@given(st.lists(text, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_any_words_survive_the_login_shell_and_sh(words: list[str]) -> None:
    assert told_by_sh(command_line([*PRINT_ALL, *words])) == words


@given(text)
@settings(deadline=None)
def test_a_quoted_text_leaves_nothing_special_inside_quotes_for_fish_or_csh(value: str) -> None:
    inside = login_quote(value).replace("\\\\", "").replace("\\'", "").replace("\\!", "").split("'")[1::2]
    assert not any(char in part for part in inside for char in "\\!")


def test_every_command_is_one_quoted_argument_of_sh() -> None:
    line = command_line([HELPER_PATH, "observe"])
    assert line.startswith("/bin/sh -c '")
    assert "\n" not in line
    assert line.endswith(f"{HELPER_PATH} observe'")


def test_sudo_stands_outside_of_pct() -> None:
    assert wrapped(("x", "y"), Wrap(sudo=True, container=129)) == (
        "sudo", "-n", "--", "pct", "exec", "129", "--", "x", "y",
    )  # fmt: skip
    assert wrapped(("x",), Wrap()) == ("x",)


@pytest.mark.parametrize("wrap", [Wrap(), Wrap(sudo=True), Wrap(container=129), Wrap(sudo=True, container=129)])
def test_hostile_words_survive_sudo_and_pct(wrap: Wrap, tmp_path: Path) -> None:
    """Stand-ins that take their own options off and execute the rest, as the real ones do."""
    for name, own in (("sudo", 2), ("pct", 3)):
        stand_in = tmp_path / name
        stand_in.write_text(f'#!/bin/sh\nshift {own}\nexec "$@"\n')
        stand_in.chmod(0o755)
    argv = wrapped([*PRINT_ALL, *HOSTILE], wrap)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environ, capture_output=True, check=True, timeout=10)
    assert done.stdout.decode().split("\0")[:-1] == list(HOSTILE)


def test_the_wrap_follows_the_host_spec() -> None:
    ssh = {"address": "10.0.0.1", "user": "ops"}
    assert wrap_of(HostSpec.model_validate({"ssh": ssh})) == Wrap(sudo=True)
    assert wrap_of(HostSpec.model_validate({"ssh": ssh, "sudo": False})) == Wrap()
    via = {"proxmoxContainer": 129}
    assert wrap_of(HostSpec.model_validate({"ssh": {"address": "10.0.0.1"}, "via": via})) == Wrap(container=129)


def test_the_helpers_path_is_the_one_that_is_installed() -> None:
    assert HELPER_PATH == host.HELPER_PATH


SUDO, PCT = Wrap(sudo=True), Wrap(sudo=True, container=129)


@pytest.mark.parametrize(
    ("status", "stderr", "wrap", "reason"),
    [
        (1, "sudo: sorry, you must have a tty to run sudo", SUDO, Reason.SUDO_DENIED),
        (1, "sudo: a terminal is required to read the password; either use the -S option", SUDO, Reason.SUDO_DENIED),
        (1, "sudo: a password is required", SUDO, Reason.SUDO_DENIED),
        (1, "ops is not in the sudoers file.", SUDO, Reason.SUDO_DENIED),
        (1, "Sorry, user ops is not allowed to execute '/bin/sh -c x' as root on gpu1.", SUDO, Reason.SUDO_DENIED),
        (1, "sudo-rs: interactive authentication is required", SUDO, Reason.SUDO_DENIED),
        (127, "/bin/sh: 1: exec: sudo: not found", SUDO, Reason.SUDO_DENIED),
        (1, "sudo: unable to resolve host gpu1: Name or service not known", SUDO, None),
        (1, "sudo: a password is required", Wrap(), None),
        (0, "sudo: a password is required", SUDO, None),
        (255, "container '129' not running!", PCT, Reason.CONTAINER_UNREACHABLE),
        (255, "CT 129 not running", PCT, Reason.CONTAINER_UNREACHABLE),
        (2, "Configuration file 'nodes/pve/lxc/129.conf' does not exist", PCT, Reason.CONTAINER_UNREACHABLE),
        (
            255,
            "lxc-attach: 129: ../src/lxc/attach.c: lxc_attach: 1314 Failed to get init pid",
            PCT,
            Reason.CONTAINER_UNREACHABLE,
        ),
        (127, "lxc-attach: 129: attach.c: lxc_attach_run_command: 1841 No such file or directory", PCT, None),
        (255, "container '129' not running!", Wrap(), None),
        (1, "sudo: pct: command not found", PCT, Reason.TOOL_MISSING),
        (127, "/bin/sh: 1: exec: pct: not found", PCT, Reason.TOOL_MISSING),
        (1, "Unmatched '''.", Wrap(), Reason.UNSUPPORTED_LOGIN_SHELL),
        (1, "fi: Command not found.", Wrap(), Reason.UNSUPPORTED_LOGIN_SHELL),
        (1, "Usage: csh [ -bcdefilmnqstvVxX ] [ argument ... ].", Wrap(), Reason.UNSUPPORTED_LOGIN_SHELL),
        (127, "fish: Unknown command: fi", Wrap(), Reason.UNSUPPORTED_LOGIN_SHELL),
        (127, "bash: line 1: nvidia-smi: command not found", Wrap(), None),
        (1, "Failed to start x.service: Unit x.service not found.", SUDO, None),
    ],
)
def test_a_refusal_is_told_from_the_commands_own_failure(
    status: int, stderr: str, wrap: Wrap, reason: Reason | None
) -> None:
    found = refusal(Finished(status, b"", stderr.encode() + b"\n"), wrap)
    assert (found and found[0]) == reason


def test_an_account_without_a_shell_says_so_on_stdout() -> None:
    found = refusal(Finished(1, b"This account is currently not available.\n", b""), Wrap())
    assert found is not None
    assert found[0] == Reason.UNSUPPORTED_LOGIN_SHELL


def test_an_answered_verb_is_no_refusal_whatever_it_wrote() -> None:
    answer = b"@" + b"0a" * 16 + b" end exit=1\n"
    done = Finished(1, answer, b"sudo: a password is required\n")
    assert refusal(done, SUDO) is None
    assert helper_refusal(done) is None


@pytest.mark.parametrize(
    ("status", "stderr", "missing"),
    [
        (127, f"/bin/sh: 1: exec: {HELPER_PATH}: not found", True),
        (1, f"sudo: {HELPER_PATH}: command not found", True),
        (126, f"/bin/sh: 1: exec: {HELPER_PATH}: Permission denied", True),
        (64, "stoker-host: no nonce", False),
    ],
)
def test_a_missing_helper_is_told_from_one_that_complains(status: int, stderr: str, missing: bool) -> None:
    found = helper_refusal(Finished(status, b"", stderr.encode()))
    assert (found is not None and found[0] == Reason.HELPER_MISSING) == missing
