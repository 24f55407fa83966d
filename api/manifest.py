"""YAML or JSON text from people into plain documents (dicts, lists, text, numbers), and back to YAML.

Called by the routes (one document a request) and the command line (many). Nothing is constructed or executed: YAML is
read as events. What two YAML readers may understand differently (`off`, `012`, `1:30`, `1e5`, empty) is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from daemon.domain.errors import AdmissionError, Problem

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 10_000  # aliases counted as often as they are used
MAX_ALIASES = 20
MAX_DOCUMENTS = 1000

_INT = re.compile(r"(0|-?[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}\Z")
_NUMBER_LIKE = re.compile(
    r"[-+]?(\.?[0-9][0-9_,]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*(:[0-9]{1,2})+(\.[0-9_]*)?)\Z"
    r"|[-+]?\.(inf|nan)\Z|\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?\Z",
    re.IGNORECASE,
)
_WORDS = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})
_NULLS = frozenset({"", "~", "null"})
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}\Z")

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def path_text(parts: tuple[str | int, ...]) -> str:
    """`spec.placement.gpus[1]`; a key that is no plain word is quoted, escaped and shortened."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            text += f".{part}" if text else part
        else:
            shown = part if len(part) <= 64 else part[:61] + "..."
            text += f"[{json.dumps(shown)}]"
    return text


def refuse(path: tuple[str | int, ...], message: str, hint: str = "") -> AdmissionError:
    """The error for one problem at one path."""
    return AdmissionError([Problem(path_text(path), message, hint)])


def decode(data: bytes, max_bytes: int = MAX_BYTES) -> str:
    """UTF-8 text of a body or file. Raises: AdmissionError."""
    if len(data) > max_bytes:
        raise refuse((), f"larger than {max_bytes} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse((), f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def read_json(data: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """One JSON document. Raises: AdmissionError on bad syntax, a duplicate key, NaN, or too deep or large a tree."""
    text = decode(data, max_bytes)
    try:
        tree = json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise refuse((), f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise refuse((), f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise refuse((), f"not a number that can be used: {str(error)[:80]}") from None
    _check_tree(tree)
    return tree


def read_yaml(data: bytes, max_bytes: int = MAX_BYTES) -> list[Any]:
    """All documents of a YAML text, empty ones left out. Raises: AdmissionError naming path and line."""
    try:
        return list(_documents(yaml.parse(decode(data, max_bytes), Loader=Loader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise refuse((), f"not YAML: {error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise refuse((), f"not YAML: {' '.join(str(error).split())[:200]}") from None


def ambiguous(text: str) -> str | None:
    """Why an unquoted YAML scalar is refused, None for plain text and for canonical numbers, true and false."""
    if text in ("true", "false") or _INT.match(text) or _FLOAT.match(text):
        return None
    if text.lower() in _NULLS:
        return "an empty value or null"
    if text.lower() in _WORDS:
        return f"unquoted {text}, which some readers take for true or false"
    if _NUMBER_LIKE.match(text):
        return f"unquoted {text[:40]}, which readers take for different numbers, times or dates"
    return None


def write_yaml(documents: list[Any], *, ascii_only: bool = False) -> str:
    """YAML that `read_yaml` reads back to the same documents (without keys whose value is None)."""
    text: str = yaml.dump_all(
        [_without_none(document) for document in documents],
        Dumper=_Writer,
        sort_keys=False,
        allow_unicode=not ascii_only,
        explicit_start=len(documents) > 1,
        default_flow_style=False,
        width=4096,
    )
    return text


class _Duplicate(dict[str, Any]):
    """A JSON object in which `key` came twice; found by `_check_tree`, which knows the path."""

    key = ""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    twice = _Duplicate(result)
    for key, _ in pairs:
        if key in seen:
            twice.key = key
            break
        seen.add(key)
    return twice


def _no_constant(text: str) -> float:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _check_tree(tree: Any) -> None:
    """Refuses duplicates, depth and size, without recursion."""
    count = 0
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), tree)]
    while todo:
        path, node = todo.pop()
        count += 1
        if count > MAX_NODES:
            raise refuse(path, f"more than {MAX_NODES} values in one document")
        if len(path) > MAX_DEPTH:
            raise refuse(path, f"nested deeper than {MAX_DEPTH}")
        if isinstance(node, dict | list) and len(node) > MAX_NODES:
            raise refuse(path, f"more than {MAX_NODES} values in one document")
        if isinstance(node, _Duplicate):
            raise refuse((*path, node.key), "key given twice", "keep one of them")
        if isinstance(node, dict):
            todo.extend(((*path, key), value) for key, value in node.items())
        elif isinstance(node, list):
            todo.extend(((*path, index), value) for index, value in enumerate(node))


@dataclass(slots=True)
class _Open:
    """A collection being filled. `key` is the mapping key that waits for its value."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    size: int = 1
    key: str | None = None

    @property
    def at(self) -> str | int | None:
        return len(self.value) if isinstance(self.value, list) else self.key


@dataclass(slots=True)
class _Builder:
    """Builds one document from events; `anchors` maps a name to its value and that value's size in nodes."""

    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    aliases: int = 0
    nodes: int = 0
    root: Any = None

    def path(self, *more: str | int) -> tuple[str | int, ...]:
        return (*(at for item in self.stack if (at := item.at) is not None), *more)

    def feed(self, event: Any) -> None:
        match event:
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()

    def _count(self, size: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise refuse(self.path(), f"more than {MAX_NODES} values in one document, aliases counted")

    def _alias(self, event: Any) -> None:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise refuse(self.path(), f"more than {MAX_ALIASES} aliases in one document", "write the values out")
        if self._wants_key():
            raise refuse(self.path(), "an alias cannot be a key", "write the key out")
        if event.anchor not in self.anchors:
            raise refuse(self.path(), f"alias *{event.anchor[:40]} has no finished anchor before it")
        value, size = self.anchors[event.anchor]
        self._count(size)
        self._put(value, size)

    def _scalar(self, event: Any) -> None:
        plain = event.implicit[0] and event.style in (None, "")
        if event.tag is not None:
            raise self._tagged(event)
        if self._wants_key():
            self._take_key(event, plain)
            return
        self._count(1)
        value = self._resolve(event) if plain else event.value
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value, 1)

    def _resolve(self, event: Any) -> Any:
        text: str = event.value
        if (why := ambiguous(text)) is not None:
            hint = "leave the key out, or quote it" if text.lower() in _NULLS else f'quote it: "{text[:40]}"'
            raise refuse(self.path(), f"{why} (line {event.start_mark.line + 1})", hint)
        if text in ("true", "false"):
            return text == "true"
        if _INT.match(text):
            return int(text)
        return float(text) if _FLOAT.match(text) else text

    def _take_key(self, event: Any, plain: bool) -> None:
        key: str = event.value
        top = self.stack[-1]
        where = self.path(key)
        if plain and key == "<<":
            raise refuse(where, "merge keys are not supported", "write the values out")
        if plain and (ambiguous(key) is not None or isinstance(self._resolve(event), int | float)):
            raise refuse(where, "a key must be text", f'quote it: "{key[:40]}"')
        if key in top.value:
            raise refuse(where, f"key given twice (line {event.start_mark.line + 1})", "keep one of them")
        top.key = key

    def _open(self, event: Any) -> None:
        if event.tag is not None:
            raise self._tagged(event)
        if self._wants_key():
            raise refuse(self.path(), "a key must be text")
        if len(self.stack) >= MAX_DEPTH:
            raise refuse(self.path(), f"nested deeper than {MAX_DEPTH}")
        self._count(1)
        mapping = isinstance(event, yaml.MappingStartEvent)
        self.stack.append(_Open({} if mapping else [], event.anchor))

    def _close(self) -> None:
        item = self.stack.pop()
        if item.anchor is not None:
            self.anchors[item.anchor] = (item.value, item.size)
        self._put(item.value, item.size)

    def _put(self, value: Any, size: int) -> None:
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        top.size += size
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None

    def _wants_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _tagged(self, event: Any) -> AdmissionError:
        return refuse(self.path(), f"tag {event.tag[:60]!r} is not allowed (line {event.start_mark.line + 1})")


def _documents(events: Iterator[Any]) -> Iterator[Any]:
    builder = _Builder()
    count = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            builder = _Builder()
            count += 1
            if count > MAX_DOCUMENTS:
                raise refuse((), f"more than {MAX_DOCUMENTS} documents")
        elif isinstance(event, yaml.DocumentEndEvent):
            if builder.root is not None:
                yield builder.root
        elif _is_empty_document(builder, event):
            continue
        else:
            builder.feed(event)


def _is_empty_document(builder: _Builder, event: Any) -> bool:
    """A `---` with nothing behind it, which people leave at the end of a file."""
    return isinstance(event, yaml.ScalarEvent) and not builder.stack and event.value == "" and event.style in (None, "")


class _Writer(_Dumper):  # type: ignore[misc]
    """Quotes every text that `read_yaml` would refuse or read as a number; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, data: str) -> Any:
    plain = (
        ambiguous(data) is None and data not in ("true", "false", "<<") and not (_INT.match(data) or _FLOAT.match(data))
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')


_Writer.add_representer(str, _represent_text)


def _without_none(node: Any) -> Any:
    if isinstance(node, dict):
        return {str(key): _without_none(value) for key, value in node.items() if value is not None}
    return [_without_none(value) for value in node] if isinstance(node, list | tuple) else node
