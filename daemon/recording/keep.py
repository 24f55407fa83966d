"""An answer of the helper as a recording: whole, its secrets taken out so that it can be replayed all the same.

Called by `daemon.by_hand`. What is taken out is taken out word by word: as many arguments, lines and rows are left as
there were. A secret that is known by its name in one place is taken out wherever else it stands.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from daemon.engines.redact import HIDDEN, is_secret_name, redact
from daemon.probes.report import Section
from daemon.recording.form import FORMAT

Json = dict[str, Any]
_LONG_ENOUGH = 8  # a shorter secret is hidden where its name stands, and only there: it may be part of any word
_NUMBERS = frozenset({"candidates", "uids", "nvfds", "sockets", "sessions", "environ_ok"})  # no free text in them
COMMANDS = {
    "meta": "cat /proc/sys/kernel/random/boot_id /etc/machine-id …; systemd-detect-virt -c; systemctl --version; df -P",
    "hold": "cat /etc/stoker/hold",
    "fence": "cat /var/lib/stoker/fence",
    "gpus": "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name,driver_version,memory.total,memory.used,utilization.gpu,"
    "temperature.gpu,mig.mode.current --format=csv,noheader,nounits",
    "apps": "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory --format=csv,noheader,nounits",
    "units": "systemctl show --no-pager -p Id,Names,LoadState,… -- UNITS",
    "loaded": "busctl --json=short get-property org.freedesktop.systemd1 … ExecStart Environment User WorkingDirectory",
    "others": "systemctl show --no-pager -p Id,ActiveState,LoadState -- UNITS of the processes' cgroups",
    "texts": "grep -azHZ '' UNIT-FILES and drop-ins",
    "processes": "grep -asHZ '' /proc/PID/cmdline /proc/PID/stat /proc/PID/cgroup",
    "uids": "grep -sH '^Uid:' /proc/PID/status",
    "users": "getent passwd UIDS",
    "environ": "grep -azsHZ '^STOKER_' /proc/PID/environ; of main processes also what was asked for",
    "nvfds": "find /proc/PID/fd -lname '/dev/nvidia*'",
    "sockets": "cat /proc/net/tcp /proc/net/tcp6, with the owners of the sockets",
    "sessions": "grep -sH '^LEADER=[0-9]' /run/systemd/sessions/*",
    "health": "nvidia-smi --query-gpu=uuid,ecc.errors.uncorrected.volatile.total,… --format=csv,noheader,nounits",
    "kernel": "dmesg, the lines of cards and of want of memory",
    "shm": "find /dev/shm …, with the owners of what lies there",
    "space": "stat -f -c '%b %f %a %S %c %d %n' /dev/shm …",
    "exe": "find /proc/PID/cwd /proc/PID/exe -printf …",
}


class Hider:
    """Takes secrets out of one look. `count` is how many places were changed."""

    def __init__(self, sections: Mapping[str, Section], documents: Iterable[Json] = ()) -> None:
        self.count = 0
        self.known = set[str]()
        self._everywhere: list[str] = []
        for section in sections.values():
            self.data(section)
        for document in documents:
            self.document(document)
        self._everywhere = sorted(self.known, key=lambda one: (-len(one), one))
        self.count = 0

    def data(self, section: Section) -> bytes:
        """The section's bytes without secrets, as many rows and words as before."""
        if section.name in _NUMBERS:
            return section.data
        hidden = _HIDERS.get(section.name, _by_line)(self, section.data)
        for secret in map(_encode, self._everywhere):
            if secret in hidden:
                self.count += 1
                hidden = hidden.replace(secret, HIDDEN.encode())
        return hidden

    def document(self, node: Any, name: str = "") -> Any:
        """A manifest, at any depth: the values of secret names, and what looks like a secret."""
        if isinstance(node, dict):
            return {key: self.document(value, key) for key, value in node.items()}
        if isinstance(node, list):
            return (
                self.words(node) if all(isinstance(one, str) for one in node) else [self.document(one) for one in node]
            )
        if not isinstance(node, str):
            return node
        hidden = self._hide(node) if is_secret_name(name) else self.text(node)
        for secret in self._everywhere:
            hidden = hidden.replace(secret, HIDDEN)
        return hidden

    def words(self, words: list[str]) -> list[str]:
        """An argv: the values of a flag that is named after a secret, and what looks like one."""
        found: list[str] = []
        hiding = False
        for word in words:
            name, equals, value = word.lstrip("-").partition("=")
            if hiding and not word.startswith("-"):
                found.append(self._hide(word))
                continue
            hiding = word.startswith("--") and not equals and is_secret_name(name)
            if word.startswith("--") and equals and is_secret_name(name):
                found.append(f"{word[: len(word) - len(value)]}{self._hide(value)}")
            else:
                found.append(self.text(word))
        return found

    def entry(self, entry: str) -> str:
        """NAME=VALUE of an environment."""
        name, equals, value = entry.partition("=")
        return f"{name}={self._hide(value)}" if equals and is_secret_name(name) else self.text(entry)

    def text(self, text: str) -> str:
        """Any other text."""
        hidden = redact(text)
        if hidden != text:
            self.count += 1
            self.known |= _taken_out(text, hidden)
        return hidden

    def _hide(self, value: str) -> str:
        if value in ("", HIDDEN):
            return value
        self.count += 1
        if len(value) >= _LONG_ENOUGH:
            self.known.add(value)
        return HIDDEN


def _taken_out(text: str, hidden: str) -> set[str]:
    """What stood where `[redacted]` stands now."""
    if hidden.count(HIDDEN) > 4 or len(text) > 4096:
        return set()
    found = re.fullmatch("(.+?)".join(re.escape(part) for part in hidden.split(HIDDEN)), text, re.DOTALL)
    return {one for one in (found.groups() if found else ()) if len(one) >= _LONG_ENOUGH and "\n" not in one}


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _by_line(hider: Hider, data: bytes) -> bytes:
    return _encode("\n".join(hider.text(line) for line in _decode(data).split("\n")))


def _apps(hider: Hider, data: bytes) -> bytes:
    """Only the name in the middle of a row: what stands around it is read from the outside in."""
    rows = []
    for line in _decode(data).split("\n"):
        head, tail = line.split(",", 2), line.rpartition(",")
        whole = len(head) == 3 and "," in head[2]
        name = head[2].rpartition(",")[0] if whole else ""
        rows.append(f"{head[0]},{head[1]},{hider.text(name)},{tail[2]}" if whole else hider.text(line))
    return _encode("\n".join(rows))


def _files(hider: Hider, data: bytes) -> bytes:
    """FILE NUL LINE newline …: the lines of one command line belong together."""
    groups: list[tuple[str, list[str]]] = []
    for line in _decode(data).split("\n"):
        place, nul, content = line.partition("\0")
        if nul and groups and groups[-1][0] == place:
            groups[-1][1].append(content)
        else:
            groups.append((place, [content] if nul else []))
    return _encode("\n".join(_file(hider, place, lines) for place, lines in groups))


def _file(hider: Hider, place: str, lines: list[str]) -> str:
    if not lines:
        return hider.text(place)
    content = "\n".join(lines)
    if place.endswith("/cmdline"):
        content = "\0".join(hider.words(content.split("\0")))
    return "\n".join(f"{place}\0{line}" for line in content.split("\n"))


def _environ(hider: Hider, data: bytes) -> bytes:
    parts = _decode(data).split("\0")
    return _encode("\0".join(hider.entry(part) if at % 2 else part for at, part in enumerate(parts)))


def _texts(hider: Hider, data: bytes) -> bytes:
    """Unit files by setting, which a backslash continues."""
    parts = _decode(data).split("\0")
    return _encode("\0".join(_unit_file(hider, part) if at % 2 else part for at, part in enumerate(parts)))


def _unit_file(hider: Hider, text: str) -> str:
    """Word by word, so that a flag is seen with its value though they stand on two lines."""
    pieces = re.split(r"((?:\s|\\\n)+)", text)
    words = [piece.strip("\"'") for piece in pieces[::2]]
    hidden = hider.words(words)
    for at, (word, new) in enumerate(zip(words, hidden, strict=True)):
        if word != new:
            pieces[2 * at] = pieces[2 * at].replace(word, new)
    return "\n".join(hider.text(line) for line in "".join(pieces).split("\n"))


def _loaded(hider: Hider, data: bytes) -> bytes:
    return _encode("\n".join(_loaded_line(hider, line) for line in _decode(data).split("\n")))


def _loaded_line(hider: Hider, line: str) -> str:
    """busctl's JSON: of ExecStart the argv, of Environment the entries."""
    try:
        found = json.loads(line)
        kind, value = found["type"], found["data"]
    except (ValueError, KeyError, TypeError):
        return hider.text(line)
    hidden = value
    if kind == "as" and isinstance(value, list):
        hidden = [hider.entry(one) if isinstance(one, str) else one for one in value]
    elif isinstance(value, list):
        hidden = [_command(hider, one) for one in value]
    elif isinstance(value, str):
        hidden = hider.text(value)
    same = hidden == value
    return line if same else json.dumps({"type": kind, "data": hidden}, separators=(",", ":"), ensure_ascii=False)


def _command(hider: Hider, one: Any) -> Any:
    if not isinstance(one, list):
        return one
    return [
        hider.words(part) if isinstance(part, list) and all(isinstance(w, str) for w in part) else part for part in one
    ]


_HIDERS: dict[str, Callable[[Hider, bytes], bytes]] = {
    "apps": _apps,
    "processes": _files,
    "environ": _environ,
    "texts": _texts,
    "loaded": _loaded,
}


def _hashes(before: bytes, after: bytes) -> dict[str, str]:
    pairs = zip(before.split(b"\0"), after.split(b"\0"), strict=True)
    return {hashlib.sha256(old).hexdigest(): hashlib.sha256(new).hexdigest() for old, new in pairs if old != new}


def _section_json(section: Section, data: bytes) -> Json:
    made: Json = {}
    if section.name in COMMANDS:
        made["command"] = COMMANDS[section.name]
    made |= {"exitStatus": section.exit_status, "tookMs": section.ms, "complete": section.complete}
    try:
        made["output"] = data.decode()
    except UnicodeDecodeError:
        made["base64"] = base64.b64encode(data).decode()
    return made


def recording_json(
    host: str, sections: Mapping[str, Section], *, complete: bool, helper: int, head: Mapping[str, Any], knows: Json
) -> Json:
    """The whole file. `head` is when, by whom and how long; `knows` is as `form.KnowsForm`."""
    manifests = knows.get("manifests", [])
    hider = Hider(sections, manifests)
    kept = {name: hider.data(section) for name, section in sections.items()}
    hashes = _hashes(sections["texts"].data, kept["texts"]) if "texts" in sections else {}
    instances = [
        {**one, "writtenSha256": hashes.get(one["writtenSha256"], one["writtenSha256"])}
        for one in knows.get("instances", [])
    ]
    documents = [hider.document(one) for one in manifests]
    return {
        "recording": FORMAT,
        "host": host,
        **head,
        "helper": helper,
        "complete": complete,
        "redacted": hider.count,
        "sections": {name: _section_json(section, kept[name]) for name, section in sections.items()},
        "knows": {**knows, "instances": instances, "manifests": documents},
    }
