"""The simulated host's sshd as its clients meet it: the daemon's own road, foreign keys, and a wire that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from dbus_fast import Message
from dbus_fast.aio import MessageBus
from dbus_fast.auth import UID_NOT_SPECIFIED, AuthExternal

from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.sim.bus_units import UnitFacts
from daemon.sim.server import SimServer, parsed
from daemon.ssh import Roads, SshRoad, SshSettings
from daemon.ssh.argv import Wrap, command_line, wrapped
from tests.engines.hostile import HOSTILE_ARGS
from tests.sim.machine import Machine

KEY = asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    machine = Machine(units={"a.service": UnitFacts("a.service", "loaded", "active", "running")})
    made = SimServer(machine, machine.facts, lambda: machine.units, KEY, time.monotonic)
    async with made.opened():
        yield made


@contextlib.asynccontextmanager
async def road_to(server: SimServer, folder: Path, user: str = "root", **more: float) -> AsyncIterator[SshRoad]:
    """The daemon's road, by nothing but a key file and a known_hosts file."""
    identity, known = folder / "id", folder / "known"
    KEY.write_private_key(str(identity))
    known.write_text(server.known_hosts_line())
    spec = HostSpec.model_validate({"ssh": {"address": "127.0.0.1", "port": server.port, "user": user}})
    roads = Roads(SshSettings(identity=identity, known_hosts=known, **more), lambda name: None)
    try:
        yield roads.road("m", spec)  # type: ignore[misc]
    finally:
        await roads.close()


def machine_of(server: SimServer) -> Machine:
    assert isinstance(server.machine, Machine)
    return server.machine


@pytest.mark.parametrize("user", ["root", "serve"])
async def test_a_command_arrives_as_it_was_said_and_its_bytes_come_back(
    server: SimServer, tmp_path: Path, user: str
) -> None:
    hostile = [arg for arg in HOSTILE_ARGS if "\n" not in arg]
    async with road_to(server, tmp_path, user) as road:
        done = await road.run(("echo", *hostile), b"in\x00put", 10)
        assert machine_of(server).asked == [(("echo", *hostile), b"in\x00put")]
        assert done.stdout == b"\x00" + "|".join(("echo", *hostile)).encode() + b"\xff"
        done = await road.run(("fail",), b"", 10)
        assert (done.exit_status, done.stderr) == (7, b"no\xff\n")


def test_an_argument_list_comes_out_of_the_text_that_the_daemon_makes_of_it() -> None:
    for sudo in (False, True):
        argv = ("/bin/sh", "-c", "for f; do exec cat $f; done", "look", "a 'b' \\ !", "")
        assert parsed(command_line(wrapped(argv, Wrap(sudo=sudo)))) == argv


async def test_a_request_whose_lengths_are_told_is_answered_without_an_end_of_input(server: SimServer) -> None:
    async with asyncssh.connect("127.0.0.1", server.port, client_keys=[KEY], known_hosts=None, config=None) as conn:
        process = await conn.create_process("/bin/sh -c 'exec helper put-unit'", encoding=None)
        process.stdin.write(b"nonce 1\nbody 4\n.\nab")
        process.stdin.write(b"cd")
        async with asyncio.timeout(10):
            assert (await process.wait_closed()) is None
        assert machine_of(server).asked == [(("helper", "put-unit"), b"nonce 1\nbody 4\n.\nabcd")]


async def test_only_the_key_made_for_it_opens_the_door_and_only_on_loopback(server: SimServer) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect("127.0.0.1", server.port, client_keys=[other], known_hosts=None, config=None)
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(
            "127.0.0.1", server.port, client_keys=None, password="", known_hosts=None, config=None, agent_path=None
        )
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    where = {fields[1] for fields in listening if fields[1].endswith(f":{server.port:04X}") and fields[3] == "0A"}
    assert where == {f"0100007F:{server.port:04X}"}
    others = Path("/proc/net/tcp6").read_text() if Path("/proc/net/tcp6").exists() else ""
    assert f":{server.port:04X} 00000000000000000000000000000000:0000 0A" not in others


async def test_a_cut_wire_drops_what_is_there_refuses_what_comes_and_heals(server: SimServer, tmp_path: Path) -> None:
    async with road_to(server, tmp_path) as road:
        await road.run(("echo",), b"", 10)
        server.set_wire("cut")
        with pytest.raises(TransportError) as refused:
            await road.run(("echo",), b"", 10)
        assert "[Errno 111]" in refused.value.message
        assert len(machine_of(server).asked) == 1
        server.set_wire("up")
        done = await road.run(("echo", "again"), b"", 10)
        assert done.stdout == b"\x00echo|again\xff"


async def test_a_frozen_wire_takes_connections_and_never_answers_until_it_thaws(
    server: SimServer, tmp_path: Path
) -> None:
    async with road_to(server, tmp_path) as road:
        await road.run(("echo",), b"", 10)
        server.set_wire("frozen")
        with pytest.raises(TransportError):
            await road.run(("echo", "old connection"), b"", 0.4)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.4)
        server.set_wire("up")
        assert (await asyncio.wait_for(reader.read(4), 10)) == b"SSH-"
        writer.close()
        assert (await road.run(("echo",), b"", 10)).exit_status == 0


async def test_a_frozen_wire_can_be_cut(server: SimServer, tmp_path: Path) -> None:
    async with road_to(server, tmp_path) as road:
        await road.run(("echo",), b"", 10)
        server.set_wire("frozen")
        waiting = asyncio.ensure_future(road.run(("echo",), b"", 20))
        await asyncio.wait({waiting}, timeout=0.2)
        server.set_wire("cut")
        with pytest.raises(TransportError):
            await asyncio.wait_for(waiting, 5)


async def test_a_slow_wire_delays_every_answer(server: SimServer, tmp_path: Path) -> None:
    async with road_to(server, tmp_path) as road:
        await road.run(("echo",), b"", 10)
        server.set_wire("up", 0.2)
        began = time.monotonic()
        assert (await road.run(("echo",), b"", 20)).exit_status == 0
        assert time.monotonic() - began >= 0.4


async def test_a_command_takes_its_time_and_one_that_is_cut_off_was_carried_out(
    server: SimServer, tmp_path: Path
) -> None:
    async with road_to(server, tmp_path) as road:
        began = time.monotonic()
        assert (await road.run(("slow",), b"", 20)).stdout == b"done"
        assert time.monotonic() - began >= 0.4
        waiting = asyncio.ensure_future(road.run(("slow", "twice"), b"", 20))
        async with asyncio.timeout(10):
            while len(machine_of(server).asked) < 2:
                await asyncio.sleep(0.01)
        server.set_wire("cut")
        with pytest.raises(TransportError) as lost:
            await waiting
        assert lost.value.maybe_done
        server.set_wire("up")
        assert (await road.run(("echo",), b"", 10)).exit_status == 0


async def test_what_changes_twice_in_one_move_is_told_once_and_as_it_is_in_the_end(server: SimServer) -> None:
    machine, told = machine_of(server), list[str]()
    server.bus.changed = lambda unit: told.append(machine.facts(unit).sub_state)  # type: ignore[method-assign]
    machine.change("a.service", sub_state="dead")
    machine.change("a.service", sub_state="auto-restart")
    assert told == []
    await asyncio.sleep(0)
    assert told == ["auto-restart"]


async def test_the_machine_is_woken_when_it_is_due_without_being_asked(server: SimServer) -> None:
    machine = machine_of(server)
    due = machine.due_at = time.monotonic() + 0.15
    server.touch()
    async with asyncio.timeout(5):
        while not machine.advanced:
            await asyncio.sleep(0.01)
    assert due <= machine.advanced[0] < due + 1


async def test_a_watch_through_the_ssh_connection_is_told_of_a_unit(server: SimServer, tmp_path: Path) -> None:
    machine = machine_of(server)
    async with asyncssh.connect("127.0.0.1", server.port, client_keys=[KEY], known_hosts=None, config=None) as conn:
        near = str(tmp_path / "bus")
        await conn.forward_local_path(near, "/run/dbus/system_bus_socket")
        bus = await MessageBus(f"unix:path={near}", auth=AuthExternal(UID_NOT_SPECIFIED)).connect()
        told = asyncio.get_running_loop().create_future()
        bus.add_message_handler(
            lambda said: None if told.done() or said.member != "PropertiesChanged" else told.set_result(said)
        )
        name, path = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
        await bus.call(Message(name, path, f"{name}.Manager", "Subscribe"))
        rule = f"type='signal',interface='org.freedesktop.DBus.Properties',path_namespace='{path}/unit'"
        bus_name = "org.freedesktop.DBus"
        await bus.call(Message(bus_name, "/org/freedesktop/DBus", bus_name, "AddMatch", signature="s", body=[rule]))
        machine.change("a.service", active_state="failed")
        said = await asyncio.wait_for(told, 5)
        assert said.path == f"{path}/unit/a_2eservice"
        bus.disconnect()
        with pytest.raises(asyncssh.ChannelOpenError):
            await conn.open_unix_connection("/run/docker.sock")


async def test_nothing_is_left_when_a_server_ends_with_connections_open() -> None:
    machine = Machine()
    made = SimServer(machine, machine.facts, lambda: machine.units, KEY, time.monotonic)
    async with made.opened():
        conn = await asyncssh.connect("127.0.0.1", made.port, client_keys=[KEY], known_hosts=None, config=None)
    async with asyncio.timeout(5):
        await conn.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", made.port)
    assert machine.on_unit_change == []
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [name for name in names if "Wire" in name or "SimServer" in name]
