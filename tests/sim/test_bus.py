"""The simulated bus as real clients meet it: dbus-fast, and systemd's own busctl."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.auth import UID_NOT_SPECIFIED, AuthExternal
from dbus_fast.errors import AuthError

from daemon.sim.bus import Bus
from daemon.sim.bus_match import Match
from daemon.sim.bus_units import UNITS_PATH, UnitFacts, unit_of_path, unit_path
from tests.sim.machine import Machine

SYSTEMD, MANAGER_PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
PROPERTIES = "org.freedesktop.DBus.Properties"
UNIT = "stoker-m.server.service"
INVOCATION = "0123456789abcdef" * 2


@dataclass
class Stage:
    machine: Machine
    bus: Bus
    address: str


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    unit = UnitFacts(UNIT, "loaded", "active", "running", "enabled", f"/etc/{UNIT}", INVOCATION, 77, main_pid=4711)
    machine = Machine(units={UNIT: unit})
    bus = Bus(machine.facts, lambda: machine.units)
    machine.on_unit_change.append(bus.changed)
    path = tmp_path / "bus"
    async with await asyncio.start_unix_server(bus.serve, path):
        yield Stage(machine, bus, f"unix:path={path}")


async def client(stage: Stage) -> MessageBus:
    return await MessageBus(stage.address, auth=AuthExternal(UID_NOT_SPECIFIED)).connect()


async def call(bus: MessageBus, member: str, *body: Any, path: str = MANAGER_PATH, iface: str = f"{SYSTEMD}.Manager"):
    to = "org.freedesktop.DBus" if iface == "org.freedesktop.DBus" else SYSTEMD
    return await bus.call(Message(to, path, iface, member, signature="s" * len(body), body=list(body)))


async def match(bus: MessageBus, rule: str, member: str = "AddMatch") -> Message:
    return await call(bus, member, rule, path="/org/freedesktop/DBus", iface="org.freedesktop.DBus")


def signals(bus: MessageBus) -> asyncio.Queue[Message]:
    got: asyncio.Queue[Message] = asyncio.Queue()

    def take(message: Message) -> None:
        if message.message_type is MessageType.SIGNAL:
            got.put_nowait(message)

    bus.add_message_handler(take)
    return got


async def none_more(bus: MessageBus, got: asyncio.Queue[Message]) -> bool:
    """Whether nothing was sent before the answer to a call made now."""
    await call(bus, "GetUnit", UNIT)
    return got.empty()


async def test_a_watcher_that_subscribed_is_told_both_interfaces_of_the_unit_that_changed(stage: Stage) -> None:
    bus = await client(stage)
    got = signals(bus)
    assert bus.unique_name == ":1.1"
    assert (await call(bus, "Subscribe")).message_type is MessageType.METHOD_RETURN
    await match(bus, f"type='signal',sender='{SYSTEMD}',interface='{PROPERTIES}',path='{unit_path(UNIT)}'")
    stage.machine.change(UNIT, active_state="activating", sub_state="auto-restart", main_pid=0)
    stage.machine.change("other.service", active_state="active")
    first, second = await got.get(), await got.get()
    assert [(m.path, m.interface, m.member, m.sender) for m in (first, second)] == [
        (unit_path(UNIT), PROPERTIES, "PropertiesChanged", ":1.0")
    ] * 2
    (service, changed, gone), (unit, said, _) = first.body, second.body
    assert (service, changed["MainPID"].value, gone) == (f"{SYSTEMD}.Service", 0, [])
    assert (unit, said["ActiveState"].value, said["SubState"].value) == (
        f"{SYSTEMD}.Unit", "activating", "auto-restart",
    )  # fmt: skip
    assert bytes(said["InvocationID"].value).hex() == INVOCATION
    assert await none_more(bus, got)
    bus.disconnect()


async def test_nothing_is_said_without_subscribe_without_a_match_or_after_its_removal(stage: Stage) -> None:
    bus = await client(stage)
    got = signals(bus)
    rule = f"type='signal',path_namespace='{UNITS_PATH[:-1]}'"
    await match(bus, rule)
    stage.machine.change(UNIT)
    assert await none_more(bus, got)
    await call(bus, "Subscribe")
    stage.machine.change(UNIT)
    assert not await none_more(bus, got)
    while not got.empty():
        got.get_nowait()
    await match(bus, rule, "RemoveMatch")
    stage.machine.change(UNIT)
    assert await none_more(bus, got)
    assert (await match(bus, rule, "RemoveMatch")).error_name == "org.freedesktop.DBus.Error.MatchRuleNotFound"
    bus.disconnect()


async def test_a_watcher_that_left_is_forgotten(stage: Stage) -> None:
    bus = await client(stage)
    await call(bus, "Subscribe")
    assert stage.bus.watchers == 1
    bus.disconnect()
    other = await client(stage)
    async with asyncio.timeout(5):
        while stage.bus.watchers:
            await none_more(other, asyncio.Queue())
    stage.machine.change(UNIT)
    other.disconnect()


async def test_calls_that_systemd_refuses_are_refused_by_its_names(stage: Stage) -> None:
    bus = await client(stage)
    await call(bus, "Subscribe")
    assert (await call(bus, "Subscribe")).error_name == f"{SYSTEMD}.AlreadySubscribed"
    assert (await call(bus, "GetUnit", "x.service")).error_name == f"{SYSTEMD}.NoSuchUnit"
    assert (await call(bus, "LoadUnit", "x.service")).body == [unit_path("x.service")]
    assert (await call(bus, "Reexecute")).error_name == "org.freedesktop.DBus.Error.UnknownMethod"
    found = await call(bus, "Get", f"{SYSTEMD}.Unit", "Nonsense", path=unit_path(UNIT), iface=PROPERTIES)
    assert found.error_name == "org.freedesktop.DBus.Error.UnknownProperty"
    assert (await match(bus, "type='signal',colour='red'")).error_name == (
        "org.freedesktop.DBus.Error.MatchRuleInvalid"
    )
    bus.disconnect()


async def test_another_uid_than_the_ssh_users_is_rejected(stage: Stage) -> None:
    with pytest.raises(AuthError, match="REJECTED"):
        await MessageBus(stage.address, auth=AuthExternal(4242)).connect()
    bus = await MessageBus(stage.address, auth=AuthExternal(0)).connect()
    bus.disconnect()


async def test_what_is_no_d_bus_is_hung_up_on(stage: Stage) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0BEGIN\r\n" * 30, b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n" + b"x" * 64):
        reader, writer = await asyncio.open_unix_connection(stage.address.removeprefix("unix:path="))
        writer.write(junk)
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["get-property", SYSTEMD, unit_path(UNIT), f"{SYSTEMD}.Unit", "ActiveState"], {"type": "s", "data": "active"}),
        (["get-property", SYSTEMD, unit_path(UNIT), f"{SYSTEMD}.Service", "MainPID"], {"type": "u", "data": 4711}),
        (["call", SYSTEMD, MANAGER_PATH, f"{SYSTEMD}.Manager", "GetUnit", "s", UNIT],
         {"type": "o", "data": [unit_path(UNIT)]}),
    ],
)  # fmt: skip
async def test_systemds_own_busctl_reads_it(stage: Stage, words: list[str], shown: object) -> None:
    run = await asyncio.create_subprocess_exec(
        "busctl", f"--address={stage.address}", "--json=short", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(run.communicate(), 20)
    assert (run.returncode, err) == (0, b"")
    assert json.loads(out) == shown


@pytest.mark.parametrize("unit", [UNIT, "7b.service", "a@b.service", "größe.service", "a_b.service"])
def test_a_units_path_leads_back_to_it(unit: str) -> None:
    assert unit_of_path(unit_path(unit)) == unit
    assert unit_path(UNIT) == UNITS_PATH + "stoker_2dm_2eserver_2eservice"
    assert unit_of_path("/org/freedesktop/systemd1/job/7") is None


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        ("type='signal'", True),
        ("", True),
        ("type='signal',path_namespace='/a'", True),
        ("path_namespace='/a/b'", True),
        ("path_namespace='/a/bc'", False),
        ("path='/a'", False),
        ("member=M,interface='i.f'", True),
        ("member='N'", False),
        ("arg0='x, y'", True),
        ("arg0='y'", False),
        ("arg1='x'", False),
        ("sender='org.freedesktop.systemd1'", True),
        ("sender=':1.7'", False),
        ("type='method_call'", False),
    ],
)
def test_a_match_rule_lets_through_what_the_specification_says(rule: str, passes: bool) -> None:
    assert Match.parsed(rule).takes(":1.0", "/a/b", "i.f", "M", ["x, y", 5]) is passes


@pytest.mark.parametrize("rule", ["nonsense", "type='x'", "arg64='a'", "=,", "path='/a"])
def test_a_broken_match_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Match.parsed(rule)
