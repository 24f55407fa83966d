"""Installing the helper: pushed where that is allowed, else checked, and always proved by running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon import host
from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.install import InstallOutcome, ensure_helper
from daemon.ssh import Finished
from tests.ssh.rooted import Rooted

ROOT = HostSpec.model_validate({"ssh": {"address": "10.0.0.1"}})
OPS = HostSpec.model_validate({"ssh": {"address": "10.0.0.1", "user": "ops"}})
PUSHED = InstallOutcome("pushed", host.VERSION, exact=True)


@pytest.fixture
def road(tmp_path: Path) -> Rooted:
    return Rooted(tmp_path)


def put(road: Rooted, text: bytes) -> Path:
    """What an administrator put there."""
    road.state.mkdir(exist_ok=True)
    path = road.state / "stoker-host"
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def with_version(version: int) -> bytes:
    changed = host.helper_text().replace(b"VERSION=%d" % host.VERSION, b"VERSION=%d" % version, 1)
    assert changed != host.helper_text()
    return changed


async def failure(road: Rooted, spec: HostSpec, auto: bool = True) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await ensure_helper(road, spec, auto)
    return caught.value


async def test_both_files_are_pushed_whole_and_executable(road: Rooted) -> None:
    assert await ensure_helper(road, ROOT, True) == PUSHED
    assert (road.state / "stoker-host").read_bytes() == host.helper_text()
    assert (road.state / "gate").read_bytes() == host.gate_text()
    assert {file.name: file.stat().st_mode & 0o777 for file in road.state.iterdir()} == {
        "stoker-host": 0o755,
        "gate": 0o755,
    }
    assert road.state.stat().st_mode & 0o777 == 0o755


async def test_what_is_right_already_is_left_alone(road: Rooted) -> None:
    await ensure_helper(road, ROOT, True)
    before = {file: file.stat().st_ino for file in road.state.iterdir()}
    assert await ensure_helper(road, ROOT, True) == InstallOutcome("current", host.VERSION, exact=True)
    assert {file: file.stat().st_ino for file in road.state.iterdir()} == before


async def test_a_file_that_differs_is_replaced_and_never_written_in_place(road: Rooted) -> None:
    await ensure_helper(road, ROOT, True)
    gate = (road.state / "gate").stat().st_ino
    helper = put(road, b"#!/bin/sh\nexit 0\n")
    with helper.open("rb") as still_open:
        assert await ensure_helper(road, ROOT, True) == PUSHED
        assert still_open.read() == b"#!/bin/sh\nexit 0\n"
    assert (road.state / "gate").stat().st_ino == gate


async def test_a_wrong_mode_is_put_right(road: Rooted) -> None:
    await ensure_helper(road, ROOT, True)
    (road.state / "gate").chmod(0o777)
    assert await ensure_helper(road, ROOT, True) == PUSHED
    assert (road.state / "gate").stat().st_mode & 0o777 == 0o755


async def test_what_arrives_damaged_never_takes_the_place(road: Rooted) -> None:
    helper = put(road, with_version(7))
    road.cut_at = 100
    assert (await failure(road, ROOT)).reason == Reason.TRUNCATED
    assert helper.read_bytes() == with_version(7)
    assert [file.name for file in road.state.iterdir()] == ["stoker-host"]


async def test_a_folder_that_is_a_link_is_refused(road: Rooted, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    road.state.symlink_to(tmp_path / "elsewhere")
    error = await failure(road, ROOT)
    assert "symbolic link" in error.message
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_a_helper_that_is_a_link_is_replaced(road: Rooted, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(host.helper_text())
    road.state.mkdir()
    (road.state / "stoker-host").symlink_to(tmp_path / "other")
    assert await ensure_helper(road, ROOT, True) == PUSHED
    assert not (road.state / "stoker-host").is_symlink()


async def test_with_sudo_for_the_helper_alone_one_in_range_is_used(road: Rooted) -> None:
    put(road, host.helper_text() + b"# by hand\n")
    road.sudo_allows = "helper"
    assert await ensure_helper(road, OPS, True) == InstallOutcome("checked", host.VERSION, exact=False)
    assert (road.state / "stoker-host").read_bytes().endswith(b"# by hand\n")


@pytest.mark.parametrize("version", [0, 99])
async def test_with_sudo_for_the_helper_alone_one_out_of_range_is_outdated(road: Rooted, version: int) -> None:
    put(road, with_version(version))
    road.sudo_allows = "helper"
    error = await failure(road, OPS)
    assert error.reason == Reason.HELPER_OUTDATED
    assert f"version {version}" in error.message
    assert "stoker helper print" in error.message


async def test_with_sudo_for_the_helper_alone_a_missing_one_comes_with_instructions(road: Rooted) -> None:
    road.sudo_allows = "helper"
    error = await failure(road, OPS)
    assert error.reason == Reason.HELPER_MISSING
    assert f"ops ALL=(root) NOPASSWD: {host.HELPER_PATH}" in error.message


async def test_without_any_sudo_the_line_for_sudoers_is_given(road: Rooted) -> None:
    put(road, host.helper_text())
    road.sudo_allows = "none"
    error = await failure(road, OPS)
    assert error.reason == Reason.SUDO_DENIED
    assert f"NOPASSWD: {host.HELPER_PATH}" in error.message


async def test_a_container_gets_the_line_for_pct(road: Rooted) -> None:
    road.sudo_allows = "helper"
    spec = OPS.model_copy(update={"via": HostSpec.model_validate(
        {"ssh": {"address": "10.0.0.1"}, "via": {"proxmoxContainer": 129}}).via})  # fmt: skip
    assert f"NOPASSWD: /usr/sbin/pct exec 129 -- {host.HELPER_PATH}" in (await failure(road, spec)).message


async def test_without_leave_nothing_is_written(road: Rooted) -> None:
    assert (await failure(road, ROOT, auto=False)).reason == Reason.HELPER_MISSING
    assert not road.state.exists()
    put(road, host.helper_text() + b"# by hand\n")
    assert await ensure_helper(road, ROOT, False) == InstallOutcome("checked", host.VERSION, exact=False)
    assert {command[0] for command in road.commands} == {host.HELPER_PATH}


async def test_a_helper_that_cannot_be_run_is_told_from_a_good_one(road: Rooted) -> None:
    put(road, host.helper_text()).chmod(0o644)
    error = await failure(road, ROOT, auto=False)
    assert error.reason == Reason.HELPER_MISSING
    assert "noexec" in error.message


@pytest.mark.parametrize("keep", [0, 5, 64, 100])
async def test_a_look_that_was_cut_short_is_no_look(road: Rooted, keep: int) -> None:
    """Found by seed 3 of the simulation: it ended the pass as an error of ours."""

    class CutShort:
        async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
            done = await road.run(argv, stdin, timeout_s)
            return Finished(done.exit_status, done.stdout[:keep], done.stderr)

        async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
            return await road.call(verb, stdin, timeout_s)

        async def close(self) -> None:
            await road.close()

    await ensure_helper(road, ROOT, True)
    with pytest.raises(TransportError) as caught:
        await ensure_helper(CutShort(), ROOT, True)
    assert caught.value.reason == Reason.TRUNCATED
