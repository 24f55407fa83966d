"""D-Bus on the wire, as far as a watch needs it: calls with strings out; of what comes in, the header.

Called by `conversation`. Pure. Whatever the bytes are, it gives messages or raises `Malformed`, and keeps at most one
message. The format: D-Bus specification 0.43, "Message Protocol". A body is skipped, but for an error's own words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MESSAGE_LIMIT_BYTES = 256 * 1024  # a PropertiesChanged of a unit has some 2 KiB (systemd 252)
CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4

_FIXED = 16  # bytes before the header's fields
_ORDERS = {ord("l"): "<", ord("B"): ">"}
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _ANSWERS, _DESTINATION, _SENDER, _SIGNATURE, _FDS = range(1, 10)
_TYPES = {
    _PATH: "o", _INTERFACE: "s", _MEMBER: "s", _ERROR_NAME: "s", _ANSWERS: "u", _DESTINATION: "s", _SENDER: "s",
    _SIGNATURE: "g", _FDS: "u",
}  # fmt: skip


class Malformed(Exception):
    """These bytes are no D-Bus, or more than a watch takes."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One message that came. `answers` is the serial of the call it answers, 0: none; `error` an error's own words."""

    kind: int
    answers: int
    path: str
    interface: str
    member: str
    sender: str
    error: str


def call(serial: int, destination: str, path: str, interface: str, member: str, *strings: str) -> bytes:
    """A method call whose arguments are strings."""
    body = b""
    for text in strings:
        body += b"\0" * _gap(len(body), 4) + _text(text)
    fields = [(_PATH, path), (_INTERFACE, interface), (_MEMBER, member), (_DESTINATION, destination)]
    if strings:
        fields.append((_SIGNATURE, "s" * len(strings)))
    head = b""
    for code, value in fields:
        head += b"\0" * _gap(len(head), 8) + _field(code, value)
    fixed = struct.pack("<cBBBIII", b"l", CALL, 0, 1, len(body), serial, len(head))
    return fixed + head + b"\0" * _gap(len(fixed) + len(head), 8) + body


def object_path(unit: str) -> str:
    """The unit's object of systemd: every byte but letters and digits is escaped, a leading digit too."""
    raw = unit.encode()
    plain = [chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"_{byte:02x}" for byte in raw]
    if raw[:1].isdigit():
        plain[0] = f"_{raw[0]:02x}"
    return "/org/freedesktop/systemd1/unit/" + ("".join(plain) or "_")


class Reader:
    """Takes bytes as they come, in any pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Heard]:
        """The messages that are whole now. Raises Malformed; the stream is then worth nothing."""
        self._buffer += data
        while len(self._buffer) >= _FIXED and len(self._buffer) >= (size := _size(self._buffer)):
            whole = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield _heard(whole)


def _size(raw: bytearray) -> int:
    """Length of the message that begins here."""
    order = _ORDERS.get(raw[0])
    if order is None or raw[3] != 1 or not raw[1]:
        raise Malformed(f"no D-Bus message begins with {raw[:4].hex()}")
    body, _, fields = struct.unpack_from(order + "III", raw, 4)
    size = int(_FIXED + fields + _gap(fields, 8) + body)
    if size > MESSAGE_LIMIT_BYTES:
        raise Malformed(f"a message of {size} bytes, more than {MESSAGE_LIMIT_BYTES}")
    return size


def _heard(raw: bytes) -> Heard:
    try:
        fields = _fields(raw)
        words = _words(raw, fields) if raw[1] == ERROR else ""
    except (struct.error, IndexError, UnicodeDecodeError) as exc:
        raise Malformed(f"a header that cannot be read: {exc}") from exc
    path, interface, member, sender = (str(fields.get(code, "")) for code in (_PATH, _INTERFACE, _MEMBER, _SENDER))
    return Heard(raw[1], int(fields.get(_ANSWERS, 0)), path, interface, member, sender, words)


def _fields(raw: bytes) -> dict[int, str | int]:
    order = _ORDERS[raw[0]]
    end = _FIXED + struct.unpack_from(order + "I", raw, 12)[0]
    found: dict[int, str | int] = {}
    at = _FIXED
    while at < end:
        at += _gap(at, 8)
        code, kind = raw[at], chr(raw[at + 2])
        if raw[at + 1] != 1 or raw[at + 3] != 0 or _TYPES.get(code, kind) != kind:
            raise Malformed(f"header field {code} is not of its type")
        found[code], at = _value(raw, at + 4, kind, order)
    if at > end:
        raise Malformed("a header field reaches beyond the header")
    return found


def _value(raw: bytes, at: int, kind: str, order: str) -> tuple[str | int, int]:
    """The value at that place and where the next thing begins."""
    if kind == "g":
        return raw[at + 1 : at + 1 + raw[at]].decode("ascii"), at + raw[at] + 2
    at += _gap(at, 4)
    number: int = struct.unpack_from(order + "I", raw, at)[0]
    if kind == "u":
        return number, at + 4
    if kind not in ("s", "o"):
        raise Malformed(f"a header field of type {kind!r}")
    return raw[at + 4 : at + 4 + number].decode(), at + number + 5


def _words(raw: bytes, fields: dict[int, str | int]) -> str:
    """Name and text of an error; the text is the body's first string, where it has one."""
    name = str(fields.get(_ERROR_NAME, "an error without a name"))
    if not str(fields.get(_SIGNATURE, "")).startswith("s"):
        return name
    order = _ORDERS[raw[0]]
    header: int = struct.unpack_from(order + "I", raw, 12)[0]
    text, _ = _value(raw, _FIXED + header + _gap(header, 8), "s", order)
    return f"{name}: {text}"[:500]


def _field(code: int, value: str) -> bytes:
    kind = _TYPES[code]
    head = bytes([code, 1]) + kind.encode() + b"\0"
    if kind == "g":
        return head + bytes([len(value)]) + value.encode() + b"\0"
    return head + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def _gap(at: int, width: int) -> int:
    """Bytes from there to the next multiple of `width`."""
    return -at % width
