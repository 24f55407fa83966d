"""D-Bus messages as a bus sends and gets them: framing, and the sender's name that only a bus writes.

Called by `bus`. dbus-fast packs and reads what clients say; the layout is that of the D-Bus Specification 0.43,
"Message Protocol".
"""

from __future__ import annotations

import io
import struct
from typing import Protocol

from dbus_fast import Message
from dbus_fast._private.unmarshaller import Unmarshaller

MAX_MESSAGE = 1 << 20
_HEAD = 16
_SENDER = 7
_ORDERS = {ord("l"): "<", ord("B"): ">"}


class NoDBus(Exception):
    """What came is no D-Bus."""


class Reads(Protocol):
    """The near end of asyncio's and asyncssh's byte streams."""

    async def readexactly(self, n: int, /) -> bytes:
        """That many bytes; raises IncompleteReadError."""

    async def readuntil(self, separator: bytes, /) -> bytes:
        """Up to and with the separator; raises IncompleteReadError."""


async def read_message(reader: Reads) -> Message:
    """The next whole message. Raises: NoDBus, IncompleteReadError."""
    head = await reader.readexactly(_HEAD)
    order = _ORDERS.get(head[0])
    if order is None:
        raise NoDBus
    body, _, fields = struct.unpack_from(f"{order}III", head, 4)
    left = fields + -fields % 8 + body
    if left > MAX_MESSAGE:
        raise NoDBus
    whole = io.BytesIO(head + await reader.readexactly(left))
    message = Unmarshaller(whole, None, False).unmarshall()  # type: ignore[arg-type]
    if message is None:
        raise NoDBus
    return message


def packed(message: Message, sender: str) -> bytes:
    """The message with its sender among the header's fields: dbus-fast, a client's library, writes none."""
    raw = bytes(message._marshall(False))
    (fields,) = struct.unpack_from("<I", raw, 12)
    head, rest = raw[_HEAD : _HEAD + fields], raw[_HEAD + fields + -fields % 8 :]
    name = sender.encode()
    head += bytes(-len(head) % 8) + struct.pack("<B3sI", _SENDER, b"\x01s\0", len(name)) + name + b"\0"
    return raw[:12] + struct.pack("<I", len(head)) + head + bytes(-len(head) % 8) + rest
