"""Getting in: who is trusted, who is let in, and which reason a failure gets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh import Roads
from tests.ssh.stage import Sshd, fails, known_hosts, line_of, pool, serve, spec_of

TRUE = (("true",), b"", 5.0)


async def reach(roads: Roads, spec: HostSpec) -> None:
    await roads.road("target", spec).run(*TRUE)


async def test_a_pinned_key_lets_in() -> None:
    async with serve() as sshd, pool() as roads:
        await reach(roads, spec_of(sshd))


async def test_a_key_nobody_pinned_is_unknown_and_shown() -> None:
    async with serve() as sshd, pool() as roads:
        with fails(Reason.HOST_KEY_UNKNOWN) as caught:
            await reach(roads, spec_of(sshd, host_key=None))
        assert sshd.host_key in caught.value.message
        assert sshd.logins == 0


async def test_another_key_than_the_pinned_one_is_changed() -> None:
    other = line_of(asyncssh.generate_private_key("ssh-ed25519"))
    async with serve() as sshd, pool(accept_unknown_host_keys=True) as roads:
        with fails(Reason.HOST_KEY_CHANGED):
            await reach(roads, spec_of(sshd, host_key=other))


async def test_another_type_of_key_than_the_pinned_one_is_changed() -> None:
    other = line_of(asyncssh.generate_private_key("ecdsa-sha2-nistp256"))
    async with serve() as sshd, pool() as roads:
        with fails(Reason.HOST_KEY_CHANGED):
            await reach(roads, spec_of(sshd, host_key=other))


async def test_a_host_key_line_that_is_no_key_is_named() -> None:
    async with serve() as sshd, pool() as roads:
        with fails(Reason.HOST_KEY_UNKNOWN):
            await reach(roads, spec_of(sshd, host_key="ssh-ed25519 AAAA"))


async def test_unknown_keys_are_accepted_only_when_told_so() -> None:
    async with serve() as sshd, pool(accept_unknown_host_keys=True) as roads:
        await reach(roads, spec_of(sshd, host_key=None))


async def test_known_hosts_decides_without_a_host_key_line(tmp_path: Path) -> None:
    other = line_of(asyncssh.generate_private_key("ssh-ed25519"))
    async with serve() as sshd:
        place = f"[127.0.0.1]:{sshd.port}"
        file = known_hosts(tmp_path / "known", "# comment", f"example.org {other}", f"{place} {sshd.host_key}")
        async with pool(known_hosts=file) as roads:
            await reach(roads, spec_of(sshd, host_key=None))
        known_hosts(file, f"{place} {other}")
        async with pool(known_hosts=file) as roads:
            with fails(Reason.HOST_KEY_CHANGED):
                await reach(roads, spec_of(sshd, host_key=None))
        known_hosts(file, f"example.org {other}")
        async with pool(known_hosts=file) as roads:
            with fails(Reason.HOST_KEY_UNKNOWN):
                await reach(roads, spec_of(sshd, host_key=None))


async def test_a_hashed_known_hosts_line_is_found(tmp_path: Path) -> None:
    async with serve() as sshd:
        salt = b"0123456789abcdefghij"
        mac = hmac.new(salt, f"[127.0.0.1]:{sshd.port}".encode(), hashlib.sha1).digest()
        hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"
        async with pool(known_hosts=known_hosts(tmp_path / "known", f"{hashed} {sshd.host_key}")) as roads:
            await reach(roads, spec_of(sshd, host_key=None))


async def test_a_known_hosts_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async with serve() as sshd, pool(known_hosts=tmp_path, accept_unknown_host_keys=True) as roads:
        with fails(Reason.HOST_KEY_UNKNOWN) as caught:
            await reach(roads, spec_of(sshd, host_key=None))
        assert str(tmp_path) in caught.value.message
        assert not sshd.connections


async def test_a_missing_known_hosts_file_pins_nothing_and_is_named(tmp_path: Path) -> None:
    async with serve() as sshd, pool(known_hosts=tmp_path / "absent") as roads:
        with fails(Reason.HOST_KEY_UNKNOWN) as caught:
            await reach(roads, spec_of(sshd, host_key=None))
        assert "absent" in caught.value.message


async def test_the_identity_file_lets_in_and_another_does_not(tmp_path: Path) -> None:
    key, other = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key.write_private_key(tmp_path / "key")
    other.write_private_key(tmp_path / "other")
    async with serve(Sshd(accept_key=line_of(key))) as sshd:
        async with pool(identity=tmp_path / "key") as roads:
            await reach(roads, spec_of(sshd))
        async with pool(identity=tmp_path / "other") as roads:
            with fails(Reason.AUTH_FAILED):
                await reach(roads, spec_of(sshd))
        async with pool() as roads:
            with fails(Reason.AUTH_FAILED) as caught:
                await reach(roads, spec_of(sshd))
            assert "no key at all" in caught.value.message
            assert "STOKER_SSH_IDENTITY" in caught.value.message


async def test_the_users_own_keys_are_never_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / ".ssh").mkdir()
    key.write_private_key(tmp_path / ".ssh/id_ed25519")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with serve(Sshd(accept_key=line_of(key))) as sshd, pool() as roads:
        with fails(Reason.AUTH_FAILED):
            await reach(roads, spec_of(sshd))


@pytest.mark.parametrize("setting", ["identity", "agent"])
async def test_a_missing_key_or_agent_is_told_before_the_host_is_bothered(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "absent"
    async with serve() as sshd, pool(**{setting: str(path) if setting == "agent" else path}) as roads:
        with fails(Reason.AUTH_FAILED):
            await reach(roads, spec_of(sshd))
        assert not sshd.connections


async def test_a_banner_in_latin_1_lets_in() -> None:
    async with serve(Sshd(banner=b"caf\xe9\n")) as sshd, pool() as roads:
        await reach(roads, spec_of(sshd))


async def test_a_banner_that_cannot_be_read_at_all_is_no_failed_login() -> None:
    async with serve(Sshd(banner=b"hello", banner_language=b"\xff")) as sshd, pool() as roads:
        with fails(Reason.BANNER_NOT_UTF8):
            await reach(roads, spec_of(sshd))


async def test_a_connection_lost_before_the_login_is_tried_once_more() -> None:
    async with serve(Sshd(hang_up_first=1)) as sshd, pool() as roads:
        await reach(roads, spec_of(sshd))
        assert len(sshd.connections) == 2


async def test_a_connection_lost_twice_before_the_login_is_unreachable() -> None:
    async with serve(Sshd(hang_up_first=9)) as sshd, pool() as roads:
        with fails(Reason.UNREACHABLE):
            await reach(roads, spec_of(sshd))
        assert len(sshd.connections) == 2


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """Takes connections and never says a word."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in held:
        writer.close()


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose TCP handshakes stay unanswered: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(server.getsockname())
        yield server.getsockname()[1]


async def test_a_silent_server_is_a_banner_time_out() -> None:
    async with silent() as port, pool(login_timeout_s=0.2) as roads:
        with fails(Reason.SSH_BANNER_TIMEOUT):
            await reach(roads, spec_of(Sshd(port=port)))


async def test_the_outer_deadline_gives_the_same_reason() -> None:
    async with silent() as port, pool(login_timeout_s=60) as roads:
        with fails(Reason.SSH_BANNER_TIMEOUT):
            await roads.road("target", spec_of(Sshd(port=port))).run(("true",), b"", 0.2)


async def test_tcp_that_never_answers_is_a_connect_time_out() -> None:
    with full_backlog() as port:
        async with pool(connect_timeout_s=0.2) as roads:
            with fails(Reason.CONNECT_TIMEOUT):
                await reach(roads, spec_of(Sshd(port=port)))


async def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with pool() as roads:
            with fails(Reason.UNREACHABLE):
                await reach(roads, spec_of(Sshd(port=unused.getsockname()[1])))
