"""The watch: what it hears, what it does not believe, and that no bus, whatever it does, costs more than itself."""

from __future__ import annotations

import asyncio
import gc
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast._private.unmarshaller import Unmarshaller
from hypothesis import given
from hypothesis import strategies as st

from daemon.bus import Manners
from daemon.bus.wire import MESSAGE_LIMIT_BYTES, SIGNAL, Heard, Malformed, Reader, call, object_path
from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.sim.bus import Bus
from daemon.sim.bus_units import UnitFacts
from tests.bus_stage import QUICK, UNIT, FakeBus, orderly, owner, packed

OTHER = "sglang-k26.service"
BUSY = Manners(answer_s=0.5, ping_s=60, spacing_s=0.2)


def signal_bytes(*, big: bool = False) -> bytes:
    message = Message(
        message_type=MessageType.SIGNAL, path=object_path(UNIT), interface="org.freedesktop.DBus.Properties",
        member="PropertiesChanged", signature="sa{sv}as", serial=9,
        body=["org.freedesktop.systemd1.Unit", {"ActiveState": Variant("s", "x" * (300_000 if big else 6))}, ["Job"]],
    )  # fmt: skip
    return packed(message, ":1.0")


class Broken:
    """A stream whose other end is gone, before its reader knows."""

    async def read(self, most: int) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        raise TransportError(Reason.TRANSPORT_LOST, "gone")

    def close(self) -> None: ...


# The bytes


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_calls_are_what_another_implementation_reads(strings: list[str]) -> None:
    raw = call(7, "org.example.A", "/org/example", "org.example.B", "Do", *strings)
    read = Unmarshaller(io.BytesIO(raw)).unmarshall()
    assert read is not None
    assert (read.serial, read.destination, read.path, read.interface, read.member) == (
        7, "org.example.A", "/org/example", "org.example.B", "Do",
    )  # fmt: skip
    assert (read.message_type, read.body) == (MessageType.METHOD_CALL, strings)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_messages_are_read_in_whatever_pieces_they_come(pieces: list[int]) -> None:
    error = Message(
        message_type=MessageType.ERROR, error_name="org.example.No", reply_serial=5, signature="s", body=["because"]
    )
    error.serial = 3
    raw, reader, found = signal_bytes() + bytes(error._marshall(False)) + signal_bytes(), Reader(), list[Heard]()
    for size in [*pieces, len(raw)]:
        found += reader.feed(raw[:size])
        raw = raw[size:]
    heard = Heard(SIGNAL, 0, object_path(UNIT), "org.freedesktop.DBus.Properties", "PropertiesChanged", ":1.0", "")
    assert found == [heard, Heard(3, 5, "", "", "", "", "org.example.No: because"), heard]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8), st.binary(max_size=64))
def test_no_bytes_are_more_than_malformed(changes: list[tuple[int, int]], tail: bytes) -> None:
    raw = bytearray(signal_bytes() * 2 + tail)
    for at, byte in changes:
        raw[at % len(raw)] = byte
    try:
        for heard in Reader().feed(bytes(raw)):
            assert isinstance(heard.path, str)
    except Malformed:
        pass


def test_a_big_endian_message_is_read() -> None:
    little = call(1, "org.example.A", "/org/example", "org.example.B", "Do")
    fields, at = bytearray(little), 16
    fields[0:1] = b"B"
    for start in (4, 8, 12):
        fields[start : start + 4] = little[start : start + 4][::-1]
    while at < 16 + int.from_bytes(little[12:16], "little"):
        at += -at % 8 + 4
        size = int.from_bytes(little[at : at + 4], "little")
        fields[at : at + 4] = little[at : at + 4][::-1]
        at += 4 + size + 1
    assert [heard.member for heard in Reader().feed(bytes(fields))] == ["Do"]


def test_a_message_beyond_the_limit_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(Malformed, match=f"more than {MESSAGE_LIMIT_BYTES}"):
        list(Reader().feed(signal_bytes(big=True)[:16]))


@pytest.mark.parametrize(
    ("unit", "path"),
    [("stoker-m.server.service", "stoker_2dm_2eserver_2eservice"), ("8x@é_.service", "_38x_40_c3_a9_5f_2eservice")],
)
def test_a_unit_is_named_as_systemd_names_its_object(unit: str, path: str) -> None:
    # systemd 252: busctl call org.freedesktop.systemd1 … LoadUnit s UNIT
    assert object_path(unit) == f"/org/freedesktop/systemd1/unit/{path}"


# A watch


async def test_a_change_of_a_watched_unit_wakes_its_host_once_and_at_once() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        bus.changed()
        await stage.until(lambda: stage.pokes == ["a"])
        assert stage.watches.signals("a") == 1


async def test_a_burst_is_two_hints_at_most() -> None:
    bus = FakeBus()
    async with owner(bus, limits=replace(QUICK, manners=BUSY)) as stage:
        await stage.watched(bus)
        for _ in range(50):
            bus.changed()
            await asyncio.sleep(0)
        await stage.until(lambda: stage.watches.signals("a") == 50)
        assert 1 <= len(stage.pokes) <= 2


async def test_other_units_and_other_senders_wake_nobody() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        bus.changed(OTHER, straight=True)
        bus.changed(sender=":1.66")  # anybody on the host may send this straight to us
        bus.changed()
        await stage.until(lambda: stage.watches.signals("a") == 1)
        assert stage.pokes == ["a"]


async def test_units_that_come_and_go_are_matched_on_the_open_watch() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        stage.watches.seen("a", "", bus, (OTHER,))
        await stage.until(lambda: stage.pokes == ["a"])  # what happened to it before the match stood was not heard
        bus.changed(OTHER)
        await stage.until(lambda: stage.watches.signals("a") == 1)
        assert [rule for rule in bus.rules if "path=" in rule] == [
            "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.DBus.Properties',"
            f"member='PropertiesChanged',path='{object_path(OTHER)}'"
        ]
        assert bus.opened == 1


async def test_an_idle_watch_asks_whether_systemd_lives() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        await stage.until(lambda: bus.calls.count("Ping") >= 2)
        assert stage.watches.is_up("a")
        assert stage.pokes == []


async def test_the_practice_fleets_bus_is_understood() -> None:
    async def practice(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await fleet.serve(reader, writer)

    fleet, road = Bus(UnitFacts, lambda: [UNIT]), FakeBus(talk=practice)
    async with owner(road) as stage:
        await stage.watched(road)
        fleet.changed(OTHER)
        fleet.changed(UNIT)
        await stage.until(lambda: stage.watches.signals("a") == 2)  # one for each interface of the unit
        assert fleet.watchers == 1


# The end of a watch


async def test_a_lost_watch_wakes_its_host_and_comes_back_after_the_next_fine_look() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        bus.hang_up()
        await stage.until(lambda: stage.pokes == ["a"])
        assert not stage.watches.is_up("a")
        await stage.watched(bus)
        bus.changed()
        await stage.until(lambda: stage.pokes == ["a"])
        assert stage.told() == []  # a connection that went is told by the look


async def test_a_look_over_a_watch_that_has_just_gone_ends_well() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        talk = stage.watches._hosts["a"].talk
        assert talk is not None
        talk._stream = Broken()
        stage.watches.seen("a", "", bus, (UNIT, OTHER))


async def test_a_systemd_that_leaves_the_bus_ends_the_watch() -> None:
    bus = FakeBus()
    async with owner(bus) as stage:
        await stage.watched(bus)
        gone = Message.new_signal(
            "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", "sss", ["a", "b", ""]
        )
        bus.send(gone, sender=":1.66")
        bus.changed()
        await stage.until(lambda: stage.pokes == ["a"])
        bus.send(gone, sender="org.freedesktop.DBus")
        await stage.until(lambda: not stage.watches.is_up("a"))


async def test_a_bus_that_falls_silent_is_an_ended_watch() -> None:
    bus = FakeBus(mute={"Ping"})
    async with owner(bus) as stage:
        await stage.watched(bus)
        await stage.until(lambda: not stage.watches.is_up("a") and stage.events != [])
        assert stage.pokes == ["a"]
        assert "no answer within 0.5 s" in stage.events[0].message


@pytest.mark.parametrize("member", ["Hello", "AddMatch", "Subscribe"])
async def test_a_refusal_is_told_once_and_the_period_is_short_until_it_ends(member: str) -> None:
    bus = FakeBus(refused={member})
    async with owner(bus) as stage:
        for tries in range(1, 4):
            stage.watches.seen("a", "", bus, (UNIT,))
            await stage.until(lambda tries=tries: bus.opened == tries and stage.watches._hosts["a"].task.done())
        assert [event.reason for event in stage.events] == [Reason.WATCH_UNAVAILABLE]
        assert "AccessDenied: not for you" in stage.events[0].message
        assert (stage.watches.period_s("a", 10.0), stage.watches.period_s("a", 2.0)) == (5.0, 2.0)
        bus.refused.clear()
        await stage.watched(bus)
        assert stage.watches.period_s("a", 10.0) == 10.0
        await stage.until(lambda: stage.events[-1].reason == Reason.WATCHED)


async def test_a_road_that_gives_no_socket_is_told_and_a_lost_one_is_not() -> None:
    bus = FakeBus(lost=Reason.TRANSPORT_LOST)
    async with owner(bus) as stage:
        stage.watches.seen("a", "", bus, (UNIT,))
        await stage.until(stage.watches._hosts["a"].task.done)
        assert stage.told() == []
        bus.lost = Reason.UNREACHABLE
        stage.watches.seen("a", "", bus, (UNIT,))
        await stage.until(lambda: stage.events != [])
        said = "not watched, so looked at every 5 s or sooner: no socket: Unreachable"
        assert stage.told() == [(Reason.WATCH_UNAVAILABLE, said)]


async def test_a_road_without_sockets_is_not_watched() -> None:
    async with owner() as stage:
        stage.watches.seen("a", "", object(), (UNIT,))
        assert not stage.watches.is_up("a")
        assert stage.watches.period_s("a", 10.0) == 5.0


async def test_tries_come_apart_further_and_further() -> None:
    bus = FakeBus(refused={"Hello"})
    limits = replace(QUICK, retry_s=1000.0)
    async with owner(bus, limits=limits) as stage:
        stage.watches.seen("a", "", bus, (UNIT,))
        await stage.until(stage.watches._hosts["a"].task.done)
        waits = [stage.watches._backoff_s(failures) for failures in range(1, 30)]
        assert waits[:3] == [0.75, 1.5, 3.0]
        assert waits[-1] == 750.0


async def test_a_forgotten_host_and_one_reached_in_another_way_are_let_go() -> None:
    bus, other = FakeBus(), FakeBus()
    async with owner(bus, other) as stage:
        await stage.watched(bus)
        stage.watches.seen("a", "elsewhere", other, (UNIT,))
        await stage.until(lambda: stage.watches.is_up("a") and other.opened == 1)
        stage.pokes.clear()
        stage.watches.forget("a")
        await stage.until(lambda: other._writer.is_closing() or other._writer.transport.is_closing())  # type: ignore[union-attr]
        assert (stage.pokes, stage.watches.is_up("a")) == ([], False)


# A bus that means harm


async def nonsense(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(os.urandom(4096))
    await reader.read()


async def endless_line(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"A" * 4096)
        await writer.drain()


async def rejected(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"REJECTED EXTERNAL\r\n")
    await reader.read()


async def mute(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def no_more_after_begin(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"DATA\r\n")
    await reader.readuntil(b"DATA\r\n")
    writer.write(b"OK 12\r\n")
    await reader.read()


async def huge(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"DATA\r\n")
    await reader.readuntil(b"DATA\r\n")
    writer.write(b"OK 12\r\n")
    writer.write(b"l\4\0\1" + b"\xff\xff\xff\x07" + b"\1\0\0\0" + b"\0\0\0\0")
    await reader.read()


@pytest.mark.parametrize("talk", [nonsense, endless_line, rejected, mute, no_more_after_begin, huge])
async def test_a_hostile_bus_ends_its_watch_and_nothing_else(talk: object) -> None:
    bus, good = FakeBus(talk=talk), FakeBus()  # type: ignore[arg-type]
    before = _descriptors()
    async with owner(bus, good) as stage:
        await stage.watched(good, name="b")
        stage.watches.seen("a", "", bus, (UNIT,))
        await stage.until(lambda: [event.reason for event in stage.events] == [Reason.WATCH_UNAVAILABLE])
        assert stage.watches._hosts["a"].task.done()  # type: ignore[union-attr]
        good.changed()
        await stage.until(lambda: stage.pokes == ["b"])
    await asyncio.sleep(0)
    assert _descriptors() == before


async def test_a_flood_of_hints_costs_one_look_in_each_spacing() -> None:
    async def flood(bus: FakeBus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def fill() -> None:
            while not writer.is_closing():
                bus.changed()
                await asyncio.gather(writer.drain(), asyncio.sleep(0), return_exceptions=True)

        filling = asyncio.create_task(fill())
        try:
            await orderly(bus, reader, writer)
        finally:
            filling.cancel()

    bus = FakeBus(talk=flood)
    loop = asyncio.get_running_loop()
    async with owner(bus, limits=replace(QUICK, manners=BUSY)) as stage:
        stage.watches.seen("a", "", bus, (UNIT,))
        await stage.until(lambda: len(stage.pokes) >= 2)
        began, before = loop.time(), len(stage.pokes)
        await stage.until(lambda: len(stage.pokes) >= before + 5)
        assert loop.time() - began >= 4 * BUSY.spacing_s
        assert stage.watches.is_up("a")


async def test_a_task_ended_in_any_phase_leaves_no_descriptor() -> None:
    before = _descriptors()
    for calls in range(6):
        bus = FakeBus(mute={"Subscribe"} if calls % 2 else set())
        async with owner(bus) as stage:
            stage.watches.seen("a", "", bus, (UNIT,))
            await stage.until(lambda bus=bus, calls=calls: bus.opened == 1 and len(bus.calls) >= min(calls, 3))
    await asyncio.sleep(0)
    assert _descriptors() == before


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
