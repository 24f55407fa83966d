"""The roads against OpenSSH itself: login shells that differ and talk, its limits, its banner, and how it goes away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemon import host
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.probes.report import Answer, parse_answer
from daemon.ssh import Roads, SshSettings
from daemon.verbs import request
from tests.ssh.real_sshd import GREETING, SHELLS, RealSshd, real_sshd
from tests.ssh.stage import fails
from tests.ssh.test_argv import HOSTILE, PRINT_ALL

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
NONCE = "ab" * 16
# Finds the sshd above the command, which serves this connection alone, and does that to it.
TO_ITS_SSHD = "p=$PPID; until grep -q sshd /proc/$p/comm; do read -r _ _ _ p _ </proc/$p/stat; done; kill -{} $p; {}"


@contextlib.asynccontextmanager
async def pool(settings: SshSettings, hosts: dict[str, HostSpec] | None = None) -> AsyncIterator[Roads]:
    roads = Roads(settings, (hosts or {}).get)
    try:
        yield roads
    finally:
        await roads.close()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSshd]:
    with real_sshd(tmp_path_factory.mktemp("sshd"), f"Banner {Path(__file__).parent / 'latin_1.banner'}\n") as server:
        yield server


@pytest.mark.parametrize("shell", SHELLS)
async def test_hostile_words_and_exit_statuses_come_through_every_login_shell(sshd: RealSshd, shell: str) -> None:
    words = [word for word in HOSTILE if "\n" not in word or shell != "tcsh"]  # no csh takes a line break in quotes
    async with pool(sshd.settings) as roads:
        road = roads.road("a", sshd.spec(shell))
        done = await road.run((*PRINT_ALL, *words), b"", 20)
        said = done.stdout.split(f"{GREETING}\n".encode())[-1]
        assert said.decode().split("\0")[:-1] == words
        assert (await road.run(("sh", "-c", "cat >&2; exit 3"), b"\xff\0", 20)).exit_status == 3
        assert (await road.run(("sh", "-c", "cat >&2; exit 3"), b"\xff\0", 20)).stderr == b"\xff\0"


@pytest.mark.parametrize("shell", SHELLS)
async def test_the_helpers_answer_is_read_whatever_the_shell_says_around_it(sshd: RealSshd, shell: str) -> None:
    async with pool(sshd.settings) as roads:
        raw = await roads.road("a", sshd.spec(shell)).call("version", request(NONCE, ()), 30)
    answer = parse_answer(raw, NONCE)
    assert isinstance(answer, Answer)
    assert answer.version == host.VERSION
    assert (GREETING.encode() in raw) == (shell in ("bash", "tcsh", "fish"))  # those read a file for commands as well


async def test_an_account_without_a_shell_is_named(sshd: RealSshd) -> None:
    async with pool(sshd.settings) as roads:
        with fails(Reason.UNSUPPORTED_LOGIN_SHELL):
            await roads.road("a", sshd.spec("nologin")).run(("true",), b"", 20)


@pytest.mark.parametrize("at_once", [5, 30])
async def test_more_commands_than_max_sessions_share_one_connection(sshd: RealSshd, at_once: int) -> None:
    """F01: sshd's MaxSessions is 10. With 30 at once its refusals are met, and waited out."""
    before = sshd.logins
    async with pool(replace(sshd.settings, commands_at_once=at_once)) as roads:
        road = roads.road("a", sshd.spec("dash"))
        done = await asyncio.gather(*(road.run(("sh", "-c", f"sleep 0.3; echo {n}"), b"", 60) for n in range(30)))
    assert [one.stdout for one in done] == [b"%d\n" % n for n in range(30)]
    assert sshd.logins == before + 1


async def test_forty_hosts_behind_one_sshd_stay_below_max_startups(sshd: RealSshd) -> None:
    """F06: of 80 handshakes at once sshd dropped 33."""
    async with pool(sshd.settings) as roads:
        runs = (roads.road(f"h{n}", sshd.spec("dash")).run(("echo", "ok"), b"", 60) for n in range(40))
        assert {done.stdout for done in await asyncio.gather(*runs)} == {b"ok\n"}
    assert "MaxStartups" not in sshd.said


async def test_a_server_with_no_place_for_a_handshake_is_unreachable_and_its_limit_named(tmp_path: Path) -> None:
    with real_sshd(tmp_path, "MaxStartups 1:100:1\n") as sshd, contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(("127.0.0.1", sshd.port)))
        assert first.recv(4) == b"SSH-"
        async with pool(sshd.settings) as roads:
            with fails(Reason.UNREACHABLE) as caught:
                await roads.road("a", sshd.spec()).run(("true",), b"", 30)
        assert "MaxStartups" in caught.value.message
        assert "MaxStartups" in sshd.said


async def test_a_killed_session_is_lost_and_its_output_thrown_away(sshd: RealSshd) -> None:
    """F03: asyncssh's own run() returned as after a success."""
    async with pool(sshd.settings) as roads:
        road = roads.road("a", sshd.spec("dash"))
        with fails(Reason.TRANSPORT_LOST, maybe_done=True):
            await road.run(("sh", "-c", "echo part; " + TO_ITS_SSHD.format("KILL", "sleep 20")), b"", 40)
        assert (await road.run(("echo", "again"), b"", 20)).stdout == b"again\n"


async def test_a_frozen_session_ends_at_the_deadline_and_the_next_command_dials_anew(sshd: RealSshd) -> None:
    """F04: a limit that begins with the open channel never ends here."""
    async with pool(sshd.settings) as roads:
        road = roads.road("a", sshd.spec("dash"))
        with fails(Reason.TRANSPORT_LOST, maybe_done=True):
            await road.run(("sh", "-c", TO_ITS_SSHD.format("STOP", "sleep 20")), b"", 2)
        before = sshd.logins
        assert (await road.run(("echo", "again"), b"", 20)).stdout == b"again\n"
        assert sshd.logins == before + 1


async def test_a_frozen_server_is_a_banner_time_out(tmp_path: Path) -> None:
    with real_sshd(tmp_path) as sshd:
        sshd.freeze()
        settings = SshSettings(identity=sshd.folder / "client_key", login_timeout_s=1)
        async with pool(settings) as roads:
            with fails(Reason.SSH_BANNER_TIMEOUT):
                await roads.road("a", sshd.spec()).run(("true",), b"", 30)


async def test_another_host_key_than_before_is_refused_and_a_hashed_line_is_found(tmp_path: Path) -> None:
    """F08: `ssh-keygen -H` hashes the names as Debian's client does."""
    known = tmp_path / "known"
    with real_sshd(tmp_path) as sshd:
        known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n")
        subprocess.run(("ssh-keygen", "-q", "-H", "-f", str(known)), check=True, capture_output=True)
        assert known.read_text().startswith("|1|")
        settings = replace(sshd.settings, known_hosts=known)
        async with pool(settings) as roads:
            done = await roads.road("a", sshd.spec(host_key=None)).run(("echo", "in"), b"", 20)
            assert done.stdout.endswith(b"in\n")
        sshd.stop()
        sshd.new_key("host_key")
        sshd.start()
        async with pool(settings) as roads:
            with fails(Reason.HOST_KEY_CHANGED):
                await roads.road("a", sshd.spec(host_key=None)).run(("true",), b"", 20)
        assert sshd.logins == 0


async def test_a_jump_host_is_gone_through_and_its_unknown_key_names_the_hop(sshd: RealSshd) -> None:
    """F09."""
    async with pool(sshd.settings, {"jump": sshd.spec("tcsh")}) as roads:
        done = await roads.road("target", sshd.spec("dash", jump="jump")).run(("echo", "deep"), b"", 20)
        assert done.stdout == b"deep\n"
    async with pool(sshd.settings, {"jump": sshd.spec("tcsh", host_key=None)}) as roads:
        with fails(Reason.JUMP_HOST_KEY_UNKNOWN):
            await roads.road("target", sshd.spec("dash", jump="jump")).run(("true",), b"", 20)
