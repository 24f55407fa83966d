"""Damage to bytes, drawn by hypothesis so that it shrinks: flips, losses, additions, cuts, moved lines, big numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import strategies as st

_NUMBER = re.compile(rb"[0-9]+")
_FAR = 2**20  # positions are taken modulo the length

# What such text is made of, besides any bytes at all.
_WORDS = (
    b"\0", b"\0\0\0\0", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b",", b", ", b"\t", b" ", b"-",
    b"[N/A]", b"[", b"]", b"=", b"/proc/1/stat\0", b"@", b"\xe2\x80\xa8", "\u0660\u0661".encode(), b"0", b"-1", b"1e9",
    b"nan", b"{", b"[" * 3000, b'{"data":' * 1500, b'"\\ud800"', b"No devices were found\n", b"= manager\n",
    b"end exit=0\n",
)  # fmt: skip
_STEPS = ("flip", "lose", "add", "copy", "cut", "swap", "splice", "number", "same")

Step = tuple[str, int, int, bytes]
Change = Callable[[bytes, int, int, bytes], bytes]


def steps(most: int = 4) -> st.SearchStrategy[list[Step]]:
    """One to `most` changes; what they hit is told by numbers, so that they fit bytes of any length."""
    place = st.integers(0, _FAR)
    added = st.one_of(st.sampled_from(_WORDS), st.binary(min_size=1, max_size=12))
    return st.lists(st.tuples(st.sampled_from(_STEPS), place, place, added), min_size=1, max_size=most)


def damaged(data: bytes, drawn: list[Step], other: bytes = b"") -> bytes:
    """The bytes after all changes; `other` is what a splice takes its bytes from."""
    for kind, first, second, added in drawn:
        at = first % (len(data) + 1)
        if kind == "splice":
            start = second % (len(other) + 1)
            data = data[:at] + other[start : start + 1 + first % 4000] + data[at + second % 200 :]
        else:
            data = _CHANGES[kind](data, at, second, added)
    return data


def _flip(data: bytes, at: int, second: int, _: bytes) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 + second % 255)]) + data[at + 1 :] if at < len(data) else data


def _lose(data: bytes, at: int, second: int, _: bytes) -> bytes:
    return data[:at] + data[at + 1 + second % 80 :]


def _add(data: bytes, at: int, _: int, added: bytes) -> bytes:
    return data[:at] + added + data[at:]


def _same(data: bytes, at: int, _: int, added: bytes) -> bytes:
    """Other bytes in their place, so that every length stays."""
    return (data[:at] + added + data[at + len(added) :])[: len(data)]


def _copy(data: bytes, at: int, second: int, _: bytes) -> bytes:
    return data[:at] + data[at : at + 1 + second % 300] + data[at:]


def _cut(data: bytes, at: int, _: int, __: bytes) -> bytes:
    return data[:at]


def _swap(data: bytes, at: int, second: int, _: bytes) -> bytes:
    lines = data.split(b"\n")
    one, two = at % len(lines), second % len(lines)
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


def _number(data: bytes, at: int, second: int, _: bytes) -> bytes:
    """The next number becomes a huge one, or one with leading zeros."""
    found = _NUMBER.search(data, at)
    if found is None:
        return data
    digits = b"9" * (1 + second % 5000) if second % 3 else b"000" + found[0]
    return data[: found.start()] + digits + data[found.end() :]


_CHANGES: dict[str, Change] = {
    "flip": _flip, "lose": _lose, "add": _add, "same": _same, "copy": _copy, "cut": _cut, "swap": _swap,
    "number": _number,
}  # fmt: skip
