"""The words of a unit file as systemd 252 reads them: continued lines, quotes, C escapes, specifiers, variables."""

from __future__ import annotations

from collections.abc import Iterator

SPACE = " \t\n\r"
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32}
_WIDTH = {"x": 2, "u": 4, "U": 8}


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """(section, key, value) of each assignment, in order."""
    section = ""
    for line in _lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, value = line.split("=", 1)
            yield section, key.strip(SPACE), value.strip(SPACE)


def _lines(text: str) -> Iterator[str]:
    """Whole lines: a backslash at the end continues one, and comments in between count as absent."""
    pending = ""
    for raw in text.replace("\r", "\n").split("\n"):
        if raw.lstrip(SPACE).startswith(("#", ";")):
            continue
        line = pending + raw
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1] + " "
            continue
        pending = ""
        if line.strip(SPACE):
            yield line.strip(SPACE)
    if pending.strip(SPACE):
        yield pending.strip(SPACE)


def split(text: str) -> list[str]:
    """Words without their quotes and escapes. Raises ValueError on a quote that never closes."""
    words: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in SPACE:
            at += 1
        if at >= len(text):
            return words
        word, at = _word(text, at)
        words.append(word)


def _word(text: str, at: int) -> tuple[str, int]:
    out, inside = bytearray(), ""
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            piece, at = _escape(text, at + 1)
            out += piece
            continue
        at += 1
        if inside and char == inside:
            inside = ""
        elif not inside and char in SPACE:
            return out.decode("utf-8", "surrogateescape"), at
        elif not inside and char in "\"'":
            inside = char
        else:
            out += char.encode("utf-8", "surrogateescape")
    if inside:
        raise ValueError("unbalanced quotes")
    return out.decode("utf-8", "surrogateescape"), at


def _escape(text: str, at: int) -> tuple[bytes, int]:
    """The bytes of the escape whose backslash stood before `at`; one that systemd does not know stays as written."""
    kind = text[at]
    if kind in _SIMPLE:
        return bytes([_SIMPLE[kind]]), at + 1
    width = _WIDTH.get(kind, 0)
    digits = text[at + 1 : at + 1 + width] if width else text[at : at + 3]
    try:
        value = int(digits, 16 if width else 8) if len(digits) == (width or 3) else 0
    except ValueError:
        value = 0
    if value == 0:
        return b"\\" + kind.encode("utf-8", "surrogateescape"), at + 1
    size = (1 + width) if width else 3
    return (bytes([value & 255]) if width in (0, 2) else chr(value).encode("utf-8", "surrogatepass")), at + size


def specifiers(word: str, unit: str) -> str:
    """`%n`, `%N`, `%p`, `%i` and `%%`; others stay as written."""
    stem = unit.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    known = {"n": unit, "N": stem, "p": prefix, "i": instance, "%": "%"}
    out, at = "", 0
    while at < len(word):
        following = word[at + 1 : at + 2]
        if word[at] == "%" and following in known and following:
            out, at = out + known[following], at + 2
        else:
            out, at = out + word[at], at + 1
    return out


_SPAN_S = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "hr": 3600, "d": 86400, "w": 604800}


def seconds(value: str) -> float:
    """A time span as unit files write it (`5`, `1min 30s`, `3h`, `infinity`). Raises ValueError."""
    if value == "infinity":
        return float("inf")
    total, number, unit = 0.0, "", ""
    for char in value.replace(" ", "") + "0":
        if unit and (char.isdigit() or char == "."):
            total, number, unit = total + float(number) * _SPAN_S[unit], "", ""
        if char.isdigit() or char == ".":
            number += char
        else:
            unit += char
    rest = number[:-1]  # the digit that was added to close the last unit
    return total + (float(rest) if rest else 0.0)


def span(value_s: float) -> str:
    """A time span as `systemctl show` prints it."""
    if value_s == float("inf"):
        return "infinity"
    left_us, out = round(value_s * 1_000_000), []
    for name, size in (
        ("month", 2_629_800_000_000), ("w", 604_800_000_000), ("d", 86_400_000_000), ("h", 3_600_000_000),
        ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1),
    ):  # fmt: skip
        if left_us >= size:
            out.append(f"{left_us // size}{name}")
            left_us %= size
    return " ".join(out) or "0"
