"""A socket of the host on the connection that is there: what it carries, and how it ends without a trace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.ssh import LocalRoad, SshRoad, Wrap
from tests.ssh.stage import fails, pool, serve, spec_of, until


@contextlib.asynccontextmanager
async def echo(path: Path) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Something that listens there and sends back what it gets; gives its open connections."""
    open_: list[asyncio.StreamWriter] = []

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.append(writer)
        while data := await reader.read(65536):
            writer.write(data)
        open_.remove(writer)
        writer.close()

    server = await asyncio.start_unix_server(each, path)
    try:
        yield open_
    finally:
        server.close()
        for writer in open_:
            writer.transport.abort()


def ssh_road(road: object) -> SshRoad:
    assert isinstance(road, SshRoad)
    return road


async def whole(socket: object, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await socket.read(size)  # type: ignore[attr-defined]
    return data


async def test_bytes_go_both_ways_on_the_connection_of_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, pool() as roads, echo(path) as open_:
        sshd.sockets = True
        road = ssh_road(roads.road("a", spec_of(sshd)))
        await road.run(("true",), b"", 5)
        socket = await road.open_socket(str(path), 5)
        socket.write(b"\0\xff" * 50_000)
        assert await whole(socket, 100_000) == b"\0\xff" * 50_000
        assert len(sshd.connections) == 1
        socket.close()
        socket.close()
        await until(lambda: open_ == [])


async def test_nothing_is_dialled_for_a_socket() -> None:
    async with serve() as sshd, pool() as roads:
        sshd.sockets = True
        with fails(Reason.TRANSPORT_LOST):
            await ssh_road(roads.road("a", spec_of(sshd))).open_socket("/nonexistent", 5)
        assert sshd.connections == []


async def test_a_server_that_forbids_it_and_a_host_without_the_socket_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, pool() as roads, echo(path):
        road = ssh_road(roads.road("a", spec_of(sshd)))
        await road.run(("true",), b"", 5)
        with fails(Reason.UNREACHABLE) as forbidden:
            await road.open_socket(str(path), 5)
        assert "AllowStreamLocalForwarding" in forbidden.value.message
        sshd.sockets = True
        with fails(Reason.UNREACHABLE) as missing:
            await road.open_socket(f"{path}.not", 5)
        assert missing.value.message == f"it has no socket {path}.not"
        assert len(sshd.connections) == 1


async def test_a_container_has_no_sockets_for_us() -> None:
    async with serve() as sshd, pool() as roads:
        road = ssh_road(roads.road("a", spec_of(sshd, via={"proxmox_container": 129})))
        with fails(Reason.UNREACHABLE) as caught:
            await road.open_socket("/run/dbus/system_bus_socket", 5)
        assert "container" in caught.value.message


async def test_a_frozen_server_gives_none_in_time_and_the_connection_is_remade(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, pool() as roads, echo(path):
        sshd.sockets = True
        road = ssh_road(roads.road("a", spec_of(sshd)))
        await road.run(("true",), b"", 5)
        sshd.freeze()
        with fails(Reason.TRANSPORT_LOST):
            await road.open_socket(str(path), 0.2)
        await road.run(("true",), b"", 5)
        assert len(sshd.connections) == 2


async def test_a_cut_connection_ends_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, pool() as roads, echo(path):
        sshd.sockets = True
        road = ssh_road(roads.road("a", spec_of(sshd)))
        await road.run(("true",), b"", 5)
        socket = await road.open_socket(str(path), 5)
        sshd.cut()
        async with asyncio.timeout(5):
            with contextlib.suppress(TransportError):
                assert await socket.read(1) == b""
        with contextlib.suppress(TransportError):
            socket.write(b"late")
        socket.close()


async def test_an_open_socket_keeps_no_retired_connection(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, pool() as roads, echo(path) as open_:
        sshd.sockets = True
        road = ssh_road(roads.road("a", spec_of(sshd)))
        await road.run(("true",), b"", 5)
        await road.open_socket(str(path), 5)
        with fails(Reason.TRANSPORT_LOST, maybe_done=True):
            await road.run(("sleep", "30"), b"", 0.2)
        await until(lambda: open_ == [] and sshd.open_connections == 0)


async def test_closing_the_pool_ends_what_reads(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serve() as sshd, echo(path):
        sshd.sockets = True
        async with pool() as roads:
            road = ssh_road(roads.road("a", spec_of(sshd)))
            await road.run(("true",), b"", 5)
            socket = await road.open_socket(str(path), 5)
        async with asyncio.timeout(5):
            with contextlib.suppress(TransportError):
                assert await socket.read(1) == b""


async def test_this_machine_opens_its_own_and_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    road = LocalRoad(Wrap(), confined=lambda: None)
    async with echo(path) as open_:
        socket = await road.open_socket(str(path), 5)
        socket.write(b"abc")
        assert await whole(socket, 3) == b"abc"
        socket.close()
        await until(lambda: open_ == [])
    with fails(Reason.UNREACHABLE) as caught:
        await road.open_socket(f"{path}.not", 5)
    assert "No such file" in caught.value.message


@pytest.mark.parametrize("mark", ["lxc", "docker"])
async def test_a_container_that_calls_itself_local_is_refused(mark: str) -> None:
    with fails(Reason.NOT_SYSTEMD):
        await LocalRoad(Wrap(), confined=lambda: mark).open_socket("/nonexistent", 5)
