"""systemd's own quoting of words in unit files: written, and read back as systemd 249 and later read it.

Called by `unit` alone. Facts are from systemd 252's extract_first_word, specifier_printf and utf8_is_valid.
"""

from __future__ import annotations

import re

WHITESPACE = " \t\n\r"
_BARE = re.compile(r"[A-Za-z0-9_./:=,+@-]+")
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32}
_WIDTH = {"x": 2, "u": 4, "U": 8}
_SPECIFIERS = frozenset("aAbBCcdEfgGhHiIjJlLmMnNopPrRsStTuUvVwWyYqD")


class Unreadable(ValueError):
    """The text is not what systemd accepts, or its meaning depends on the host."""


def is_noncharacter(char: str) -> bool:
    """Whether systemd refuses the whole line (and an environment value) that holds this character as such."""
    code = ord(char)
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE or 0xD800 <= code <= 0xDFFF


def quote(word: str) -> str:
    """One word for ExecStart= or Environment=: unquoted by systemd it is `word` again, to the byte.

    A lone ";" and an empty word are quoted, so that they are arguments; "%" is doubled. "$" is left alone: ExecStart
    has the ":" prefix and Environment= never expands it.
    """
    if _BARE.fullmatch(word):
        return word
    return '"' + "".join(map(_escape, word)) + '"'


def _escape(char: str) -> str:
    if char in '\\"':
        return f"\\{char}"
    if char == "%":
        return "%%"
    if char in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[char]
    if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or is_noncharacter(char):
        return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return char


def plain(value: str) -> str:
    """A value that systemd takes whole, without unquoting (WorkingDirectory=, User=): only "%" is doubled."""
    return value.replace("%", "%%")


def quote_path(path: str) -> str:
    """One path for RequiresMountsFor=, whose words know quotes but no C escapes."""
    doubled = plain(path)
    if _BARE.fullmatch(doubled):
        return doubled
    return '"' + doubled.replace("\\", "\\\\").replace('"', '\\"') + '"'


def expand(word: str) -> str:
    """The word with "%%" undone. Raises Unreadable on a specifier, whose value only the host knows."""
    if "%" not in word:
        return word
    out: list[str] = []
    at = 0
    while at < len(word):
        following = word[at + 1 : at + 2]
        if word[at] != "%":
            out.append(word[at])
        elif following == "%":
            out.append("%")
            at += 1
        elif following in _SPECIFIERS and following:
            raise Unreadable(f"specifier %{following}")
        else:
            out.append("%")
        at += 1
    return "".join(out)


def split(text: str, *, relaxed: bool) -> list[str]:
    """Words of `text`, unquoted and unescaped; specifiers are left for `expand`.

    `relaxed` is for Exec lines: unknown escapes stay as written (else they raise), and a lone `\\;` is a semicolon.
    A lone unquoted ";" becomes `SEPARATOR`. Raises Unreadable on unbalanced quotes.
    """
    words: list[str] = []
    at = _skip(text, 0)
    while at < len(text):
        if text[at] == ";" and text[at + 1 : at + 2] in ("", *WHITESPACE):
            words.append(SEPARATOR)
            at = _skip(text, at + 1)
            continue
        if relaxed and text.startswith("\\;", at) and text[at + 2 : at + 3] in ("", *WHITESPACE):
            words.append(";")
            at = _skip(text, at + 2)
            continue
        word, at = _word(text, at, relaxed=relaxed)
        words.append(word)
        at = _skip(text, at)
    return words


SEPARATOR = "\0;"  # no word of a unit file can hold a NUL


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in WHITESPACE:
        at += 1
    return at


def _word(text: str, at: int, *, relaxed: bool) -> tuple[str, int]:
    """One word from `at` and where it ends; quotes may begin and end anywhere inside it."""
    out = bytearray()
    open_quote = ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            piece, at = _unescape(text, at + 1, relaxed=relaxed)
            out += piece
            continue
        if open_quote:
            open_quote, char = ("", "") if char == open_quote else (open_quote, char)
        elif char in WHITESPACE:
            break
        elif char in "\"'":
            open_quote, char = char, ""
        out += char.encode("utf-8", "surrogateescape")
        at += 1
    if open_quote:
        raise Unreadable("unbalanced quotes")
    return out.decode("utf-8", "surrogateescape"), at


def _unescape(text: str, at: int, *, relaxed: bool) -> tuple[bytes, int]:
    """The bytes of one escape whose backslash stood before `at`, and where it ends."""
    kind = text[at : at + 1]
    if kind in _SIMPLE and kind:
        return bytes([_SIMPLE[kind]]), at + 1
    code = _number(text, at, kind)
    if code is not None:
        value, width = code
        return (bytes([value]) if width <= 3 else chr(value).encode("utf-8", "surrogatepass")), at + width
    if relaxed and kind:
        return b"\\" + kind.encode("utf-8", "surrogateescape"), at + 1
    raise Unreadable(f"unknown escape \\{kind}")


def _number(text: str, at: int, kind: str) -> tuple[int, int] | None:
    """Value and length of a \\xHH, \\NNN, \\uHHHH or \\UHHHHHHHH escape; None when it is none (or a NUL)."""
    width = _WIDTH.get(kind, 0)
    digits, base = (text[at + 1 : at + 1 + width], 16) if width else (text[at : at + 3], 8)
    pattern = rf"[0-9a-fA-F]{{{width}}}" if width else r"[0-7]{3}"
    if not re.fullmatch(pattern, digits):
        return None
    value = int(digits, base)
    if value == 0 or value > (0xFF if width in (0, 2) else 0x10FFFF):
        return None
    return value, (1 + width if width else 3)
