"""The doctor: every check in its place, whatever fails; what could not be seen is None."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import host
from daemon.doctor import Check, examine, parse
from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.install import ensure_helper
from daemon.ssh import Finished
from tests.probes.reference import frame
from tests.ssh.rooted import Rooted

NAMES = [
    *("reachable", "login-shell", "sudo", "systemd", "proc", "tools", "journal", "probe-client"),
    *("helper-folder", "hold", "nvidia-smi", "helper", "clock"),
]
SPEC = HostSpec.model_validate({"ssh": {"address": "10.0.0.1"}})
GOOD = {
    "uid": "0",
    "pid1": "systemd",
    "systemd": "252",
    "proc": "yes",
    "missing": "",
    "grepz": "1",
    "smi": "/usr/bin/nvidia-smi",
    "smi_exit": "0",
    "options": "rw,relatime",
    "journal": "0",
    "client": "/usr/bin/python3",
    "now": "1000",
    "synced": "yes",
    "end": "yes",
}


class Told:
    """A host that answers with these facts, or whose road fails."""

    def __init__(self, failure: TransportError | None = None, helper: bool = True, **facts: str | None) -> None:
        self._failure = failure
        self._helper = helper
        self._facts = {**GOOD, **facts}

    async def run(self, argv: object, stdin: bytes, timeout_s: float) -> Finished:
        if self._failure is not None:
            raise self._failure
        lines = (f"stoker.{key}={value}\n" for key, value in self._facts.items() if value is not None)
        return Finished(0, "".join(["welcome to gpu-07!\n", *lines]).encode(), b"")

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if not self._helper:
            raise TransportError(Reason.SUDO_DENIED, "sudo: a password is required")
        nonce = stdin.split()[1]
        return frame({}, "version", nonce=nonce.decode(), version=host.VERSION)

    async def close(self) -> None: ...


async def checks(road: Told, spec: HostSpec = SPEC, now_s: float | None = 1001.5) -> dict[str, Check]:
    found = await examine(road, spec, now_s)
    assert [check.name for check in found] == NAMES
    assert all(check.remedy for check in found if check.ok is False)
    return {check.name: check for check in found}


async def test_a_good_host_passes_everything() -> None:
    found = await checks(Told())
    assert {check.ok for check in found.values()} == {True}
    assert not any(check.remedy for check in found.values())


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"uid": "1000"}, "sudo"),
        ({"systemd": "247"}, "systemd"),
        ({"systemd": ""}, "systemd"),
        ({"pid1": "bash"}, "systemd"),
        ({"proc": ""}, "proc"),
        ({"missing": " ss busctl"}, "tools"),
        ({"grepz": ""}, "tools"),
        ({"journal": "1"}, "journal"),
        ({"client": ""}, "probe-client"),
        ({"options": "rw,noexec,relatime"}, "helper-folder"),
        ({"hold": "held: maintenance until Friday"}, "hold"),
        ({"smi": "", "smi_exit": None}, "nvidia-smi"),
        ({"smi_exit": "124"}, "nvidia-smi"),
        ({"now": "1100"}, "clock"),
    ],
)
async def test_one_thing_amiss_fails_its_own_check_alone(facts: dict[str, str | None], name: str) -> None:
    found = await checks(Told(**facts))
    assert [check.name for check in found.values() if check.ok is not True] == [name]
    assert found[name].ok is False


async def test_what_cannot_be_told_is_none() -> None:
    found = await checks(Told(options=""), now_s=None)
    assert (found["helper-folder"].ok, found["clock"].ok) == (None, None)


async def test_a_host_declared_without_gpus_needs_no_nvidia_smi() -> None:
    spec = HostSpec.model_validate({"ssh": {"address": "10.0.0.1"}, "gpus": {"count": 0}})
    assert (await checks(Told(smi="", smi_exit=None), spec))["nvidia-smi"].ok is None


async def test_a_broken_road_leaves_the_rest_open() -> None:
    found = await checks(Told(TransportError(Reason.AUTH_FAILED, "no key fits")))
    assert found["reachable"].ok is False
    assert "AuthFailed" in found["reachable"].message
    assert {check.ok for name, check in found.items() if name != "reachable"} == {None}


async def test_sudo_for_the_helper_alone_is_no_failure() -> None:
    found = await checks(Told(TransportError(Reason.SUDO_DENIED, "sudo: a password is required")))
    assert (found["reachable"].ok, found["sudo"].ok, found["helper"].ok) == (True, None, True)


async def test_no_sudo_at_all_is_one() -> None:
    found = await checks(Told(TransportError(Reason.SUDO_DENIED, "sudo: a password is required"), helper=False))
    assert (found["reachable"].ok, found["sudo"].ok, found["helper"].ok) == (True, False, False)


async def test_an_unsupported_login_shell_is_named() -> None:
    found = await checks(Told(TransportError(Reason.UNSUPPORTED_LOGIN_SHELL, "Unmatched '''.")))
    assert (found["reachable"].ok, found["login-shell"].ok, found["sudo"].ok) == (True, False, None)


async def test_a_look_that_ended_early_passes_nothing() -> None:
    found = await checks(Told(end=None))
    assert {check.ok for name, check in found.items() if name != "reachable"} == {None}


def test_only_marked_lines_are_facts() -> None:
    assert parse(b"uid=0\nstoker.uid=7\nstoker.x=a=b\n\xff\n") == {"uid": "7", "x": "a=b"}


async def test_the_real_look_comes_to_its_end_with_real_tools(tmp_path: Path) -> None:
    """Whatever this machine is, the script itself runs through and its answers are read."""
    tools = {"nvidia-smi": "echo 'GPU 0: H200'", "journalctl": "exit 0", "cat": 'PATH=${PATH#*:}; exec cat "$@"'}
    road = Rooted(tmp_path, tools)
    await ensure_helper(road, SPEC, True)
    found = {check.name: check for check in await examine(road, SPEC)}
    good = ("reachable", "login-shell", "sudo", "proc", "journal", "probe-client", "nvidia-smi", "helper")
    assert {name: found[name].ok for name in good} == dict.fromkeys(good, True)
    assert found["nvidia-smi"].message == f"{tmp_path}/bin/nvidia-smi ends with 0"
