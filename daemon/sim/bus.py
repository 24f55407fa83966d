"""One simulated host's system bus with a simulated systemd on it, spoken over any pair of byte streams.

`server` hands each connection to `/run/dbus/system_bus_socket` to `Bus.serve`; tests do so from a socket. It knows as
much as a watcher of units asks for: authentication, Hello, matches, systemd's Manager, unit properties and
PropertiesChanged. Errors bear the names of the D-Bus Specification 0.43 and of systemd 252 (bus-common-errors.h).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dbus_fast import Message, MessageFlag, MessageType, Variant

from daemon.sim.bus_match import Match
from daemon.sim.bus_message import NoDBus, Reads, packed, read_message
from daemon.sim.bus_units import INTERFACES, UnitFacts, properties, unit_of_path, unit_path

BUS, SYSTEMD = "org.freedesktop.DBus", "org.freedesktop.systemd1"
MANAGER, PROPERTIES = f"{SYSTEMD}.Manager", f"{BUS}.Properties"
MANAGER_PATH = "/org/freedesktop/systemd1"
SYSTEMD_NAME = ":1.0"
GUID = "5170c0de5170c0de5170c0de5170c0de"
MAX_LINES = 20


class Writes(Protocol):
    """The far end."""

    def write(self, data: bytes, /) -> None:
        """Queue the bytes."""

    def close(self) -> None:
        """End of it."""


class CallFailed(Exception):
    """A method call's error reply: its D-Bus name and text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Bus:
    """The bus of one host. `facts` tells the state of any unit, loaded or not; `names` those that are loaded."""

    def __init__(self, facts: Callable[[str], UnitFacts], names: Callable[[], Iterable[str]]) -> None:
        self.facts = facts
        self.names = names
        self._clients: dict[str, _Client] = {}
        self._made = 0

    async def serve(self, reader: Reads, writer: Writes) -> None:
        """One connection until its end. A stranger to the protocol is hung up on."""
        self._made += 1
        name = f":1.{self._made}"
        try:
            if await _authenticated(reader, writer):
                client = self._clients[name] = _Client(self, name, writer)
                while True:
                    client.take(await read_message(reader))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, NoDBus):
            pass
        finally:
            self._clients.pop(name, None)
            writer.close()

    def changed(self, unit: str) -> None:
        """The unit's state changed: said to who subscribed, once for each of its interfaces, as systemd does."""
        if not any(client.subscribed for client in self._clients.values()):
            return
        for interface in reversed(INTERFACES):
            body = [interface, properties(self.facts(unit), interface), []]
            for client in self._clients.values():
                client.signal(unit_path(unit), PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    @property
    def watchers(self) -> int:
        """How many connections subscribed to systemd's signals now."""
        return sum(client.subscribed for client in self._clients.values())


async def _authenticated(reader: Reads, writer: Writes) -> bool:
    """SASL EXTERNAL: without a uid the kernel's word is taken; a uid that is not the SSH user's, root, is rejected."""
    if await reader.readexactly(1) != b"\0":
        return False
    accepted = False
    for _ in range(MAX_LINES):
        line = (await reader.readuntil(b"\r\n"))[:-2].decode("ascii", "replace")
        match line.split(" "):
            case ["AUTH", "EXTERNAL"]:
                answer = "DATA"
            case ["DATA"] | ["DATA", ""] | ["AUTH", "EXTERNAL", "30"]:  # 30: the hex digits of root's "0"
                accepted, answer = True, f"OK {GUID}"
            case ["BEGIN"] if accepted:
                return True
            case ["NEGOTIATE_UNIX_FD"] if accepted:
                answer = "ERROR no descriptors over this bus"
            case _:
                answer = "REJECTED EXTERNAL"
        writer.write(f"{answer}\r\n".encode())
    return False


class _Client:
    """One authenticated connection."""

    def __init__(self, bus: Bus, name: str, writer: Writes) -> None:
        self.name = name
        self.subscribed = False
        self._bus = bus
        self._writer = writer
        self._rules: list[Match] = []
        self._serial = 0
        self._greeted = False

    def take(self, message: Message) -> None:
        """Carry one call out and reply."""
        if message.message_type != MessageType.METHOD_CALL:
            return
        try:
            signature, body = self._call(message)
            reply = Message.new_method_return(message, signature, body)
        except CallFailed as error:
            reply = Message.new_error(message, error.name, str(error))
        if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
            self._send(reply, BUS if message.destination in (BUS, None) else SYSTEMD_NAME)

    def signal(self, path: str, interface: str, member: str, signature: str, body: list[Any]) -> None:
        """Send systemd's signal, if this client subscribed and a match of its lets it through."""
        if self.subscribed and any(rule.takes(SYSTEMD_NAME, path, interface, member, body) for rule in self._rules):
            self._send(Message.new_signal(path, interface, member, signature, body), SYSTEMD_NAME)

    def _send(self, message: Message, sender: str) -> None:
        self._serial += 1
        message.serial = self._serial
        if message.message_type != MessageType.SIGNAL:
            message.destination = self.name
        self._writer.write(packed(message, sender))

    def _call(self, call: Message) -> tuple[str, list[Any]]:
        """Signature and body of the reply. Raises: CallFailed."""
        if not self._greeted and call.member != "Hello":
            raise CallFailed(f"{BUS}.Error.AccessDenied", "Client tried to send a message without Hello")
        if call.interface == f"{BUS}.Peer" and call.member == "Ping":
            return "", []
        if call.destination == BUS:
            return self._call_bus(call)
        if call.destination not in (SYSTEMD, SYSTEMD_NAME):
            raise CallFailed(f"{BUS}.Error.ServiceUnknown", f"The name {call.destination} was not provided")
        if call.interface == PROPERTIES:
            return self._call_properties(call)
        return self._call_manager(call)

    def _call_bus(self, call: Message) -> tuple[str, list[Any]]:
        match call.member, call.body:
            case "Hello", []:
                self._greeted = True
                return "s", [self.name]
            case "AddMatch", [str(rule)]:
                self._rules.append(_rule(rule))
                return "", []
            case "RemoveMatch", [str(rule)]:
                if (found := _rule(rule)) not in self._rules:
                    raise CallFailed(f"{BUS}.Error.MatchRuleNotFound", "The given match rule wasn't found")
                self._rules.remove(found)
                return "", []
            case "GetNameOwner", [str(name)] if name in (BUS, SYSTEMD, SYSTEMD_NAME):
                return "s", [BUS if name == BUS else SYSTEMD_NAME]
            case "GetNameOwner", [str(name)]:
                raise CallFailed(f"{BUS}.Error.NameHasNoOwner", f"Could not get owner of name '{name}': no such name")
            case "NameHasOwner", [str(name)]:
                return "b", [name in (BUS, SYSTEMD, SYSTEMD_NAME)]
            case "ListNames", []:
                return "as", [[BUS, SYSTEMD, SYSTEMD_NAME, self.name]]
            case "GetId", []:
                return "s", [GUID]
        raise _unknown_method(call)

    def _call_manager(self, call: Message) -> tuple[str, list[Any]]:
        if call.path != MANAGER_PATH or call.interface not in (MANAGER, None):
            raise _unknown_method(call)
        match call.member, call.body:
            case "Subscribe", []:
                if self.subscribed:
                    raise CallFailed(f"{SYSTEMD}.AlreadySubscribed", "Client is already subscribed.")
                self.subscribed = True
                return "", []
            case "Unsubscribe", []:
                if not self.subscribed:
                    raise CallFailed(f"{SYSTEMD}.NotSubscribed", "Client is not subscribed.")
                self.subscribed = False
                return "", []
            case "GetUnit", [str(unit)] if unit not in self._bus.names():
                raise CallFailed(f"{SYSTEMD}.NoSuchUnit", f"Unit {unit} not loaded.")
            case "GetUnit" | "LoadUnit", [str(unit)]:
                return "o", [unit_path(unit)]
        raise _unknown_method(call)

    def _call_properties(self, call: Message) -> tuple[str, list[Any]]:
        unit = unit_of_path(call.path or "")
        if unit is None:
            raise CallFailed(f"{BUS}.Error.UnknownObject", f"Unknown object '{call.path}'.")
        match call.member, call.body:
            case "Get", [str(interface), str(name)] if interface in INTERFACES:
                if (found := properties(self._bus.facts(unit), interface).get(name)) is None:
                    raise CallFailed(f"{BUS}.Error.UnknownProperty", f"Unknown property {name}")
                return "v", [found]
            case "GetAll", [str(interface)] if interface in INTERFACES:
                return "a{sv}", [properties(self._bus.facts(unit), interface)]
            case "GetAll", [""]:
                every: dict[str, Variant] = {}
                for interface in INTERFACES:
                    every |= properties(self._bus.facts(unit), interface)
                return "a{sv}", [every]
            case "Get" | "GetAll", [str(interface), *_]:
                raise CallFailed(f"{BUS}.Error.UnknownInterface", f"Unknown interface {interface}")
        raise _unknown_method(call)


def _rule(text: str) -> Match:
    try:
        return Match.parsed(text)
    except ValueError as error:
        raise CallFailed(f"{BUS}.Error.MatchRuleInvalid", str(error)) from error


def _unknown_method(call: Message) -> CallFailed:
    return CallFailed(f"{BUS}.Error.UnknownMethod", f"Unknown method {call.member} or interface {call.interface}.")
