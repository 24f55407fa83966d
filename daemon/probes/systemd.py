"""What systemd said: `systemctl show` for scalars, busctl's JSON for argv and environment, logind's session files.

Called by `report`. `systemctl show` exits 0 for units that do not exist: only LoadState tells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from daemon.domain.observation import DropIn, Environment, Loaded, Session, Unit, UnitFile, Unknown
from daemon.domain.status import Reason
from daemon.probes.process import Malformed, text, whole_lines, whole_number

_SPAN_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
    "month": 2_629_800_000_000,
    "y": 31_557_600_000_000,
}
_SPAN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(us|ms|s|min|h|d|w|month|y)")
INFINITE_US = 2**64 - 1
_PROPERTIES = 4  # ExecStart, Environment, User, WorkingDirectory


def timespan_us(value: str) -> int:
    """Microseconds of a span as systemctl writes it (`1min 30s`, `infinity`). Raises Malformed."""
    if value == "infinity":
        return INFINITE_US
    total = 0.0
    for part in value.split():
        found = _SPAN.fullmatch(part)
        if found is None:
            if part == "0":
                continue
            raise Malformed(f"not a time span: {value[:40]!r}")
        total += float(found[1]) * _SPAN_US[found[2]]
    return int(total)


def parse_show(data: bytes, names: Sequence[str]) -> list[dict[str, str]]:
    """One dictionary for each name, in their order. Raises Malformed when systemctl showed more or fewer."""
    whole_lines(data)
    blocks = [block for block in text(data).split("\n\n") if block.strip()]
    if len(blocks) != len(names):
        raise Malformed(f"{len(blocks)} units were shown, {len(names)} were asked for")
    shown = []
    for block, name in zip(blocks, names, strict=True):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if name not in (values.get("Id"), *values.get("Names", "").split()):
            raise Malformed(f"{values.get('Id')!r} was shown, {name} was asked for")
        shown.append(values)
    return shown


def _count(values: Mapping[str, str], key: str) -> int:
    """A number, 0 for what systemd leaves empty. Raises Malformed."""
    value = values.get(key, "")
    return 0 if value in ("", "[not set]") else whole_number(value)


def unit(
    name: str,
    values: Mapping[str, str],
    loaded: Loaded | Unknown | None,
    file: UnitFile | None,
    main: Environment | None,
    dropins: tuple[DropIn, ...] | None = (),
) -> Unit:
    """One unit out of the properties of `systemctl show`. Raises Malformed when an essential one is missing."""
    try:
        return Unit(
            name=name,
            load_state=values["LoadState"],
            active_state=values["ActiveState"],
            sub_state=values["SubState"],
            result=values.get("Result", ""),
            unit_file_state=values.get("UnitFileState", ""),
            fragment_path=values.get("FragmentPath", ""),
            dropin_paths=tuple(values.get("DropInPaths", "").split()),
            need_daemon_reload=values["NeedDaemonReload"] == "yes",
            main_pid=_count(values, "MainPID"),
            control_pid=_count(values, "ControlPID"),
            invocation_id=values.get("InvocationID", ""),
            restarts=_count(values, "NRestarts"),
            exec_main_code=_count(values, "ExecMainCode"),
            exec_main_status=_count(values, "ExecMainStatus"),
            exec_main_start_us=_count(values, "ExecMainStartTimestampMonotonic"),
            inactive_exit_us=_count(values, "InactiveExitTimestampMonotonic"),
            active_enter_us=_count(values, "ActiveEnterTimestampMonotonic"),
            inactive_enter_us=_count(values, "InactiveEnterTimestampMonotonic"),
            control_group=values.get("ControlGroup", ""),
            timeout_stop_us=timespan_us(values.get("TimeoutStopUSec", "")),
            job=_count(values, "Job"),
            state_change_us=_count(values, "StateChangeTimestampMonotonic"),
            loaded=loaded if values["LoadState"] == "loaded" else None,
            file=file,
            main=main,
            dropins=dropins,
        )
    except KeyError as missing:
        raise Malformed(f"{name}: systemctl showed no {missing.args[0]}") from None


def parse_loaded(data: bytes) -> dict[str, Loaded | Unknown]:
    """Per unit the four properties that busctl printed as JSON lines below `= UNIT`."""
    found: dict[str, Loaded | Unknown] = {}
    for block in ("\n" + text(data)).split("\n= ")[1:]:
        name, _, rest = block.partition("\n")
        try:
            found[name] = _loaded([_data(line) for line in rest.split("\n") if line])
        except ValueError:
            found[name] = Unknown(Reason.UNPARSABLE, f"busctl on {name}: {rest[:200]}")
    return found


def _loaded(values: Sequence[object]) -> Loaded:
    """ExecStart is a(sasbttttuii): of the first command the second field is its argv."""
    if len(values) != _PROPERTIES:
        raise Malformed("busctl did not print four properties")
    commands, environment, *rest = values
    argv: tuple[str, ...] = ()
    if commands != []:
        first = commands[0] if isinstance(commands, list) else None
        if not isinstance(first, list) or len(first) < 2:
            raise Malformed("busctl printed another type")
        argv = _strings(first[1])
    entries = (entry.partition("=") for entry in _strings(environment))
    return Loaded(argv, tuple((name, value) for name, _, value in entries), *_strings(rest))


def _data(line: str) -> object:
    """The value in one line of busctl's. Raises Malformed, or ValueError for no JSON."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise Malformed("busctl printed a value nested without end") from None
    if not isinstance(value, dict) or "data" not in value:
        raise Malformed("busctl printed no value")
    return value["data"]


def _strings(value: object) -> tuple[str, ...]:
    """A list of strings. Raises Malformed. Half a surrogate pair, which no one could write anywhere, is replaced."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Malformed("busctl printed another type")
    return tuple(text(one.encode("utf-8", "surrogatepass")) for one in value)


def parse_files(paths: str, texts: Mapping[bytes, bytes]) -> dict[str, UnitFile]:
    """Unit files by unit, out of lines `UNIT PATH present|absent|other`. Raises Malformed.

    `other` (a link, as a masked unit has) counts as no file of ours: writing over it is refused on the host.
    """
    files = {}
    for line in whole_lines(paths):
        parts = line.split(" ")
        if len(parts) != 3 or parts[2] not in ("present", "absent", "other"):
            raise Malformed(f"not a unit file: {line[:80]!r}")
        name, path, state = parts
        content = texts.get(path.encode(), b"") if state == "present" else None
        digest = None if content is None else hashlib.sha256(content).hexdigest()
        files[name] = UnitFile(path, None if content is None else text(content), digest, link=state == "other")
    return files


def parse_dropins(paths: str, texts: Mapping[bytes, bytes]) -> dict[str, tuple[DropIn, ...]]:
    """Drop-ins by unit, out of lines `UNIT PATH`. Raises Malformed."""
    found: dict[str, list[DropIn]] = {}
    for line in whole_lines(paths):
        name, space, path = line.partition(" ")
        if not space or not path.startswith("/"):
            raise Malformed(f"not a drop-in: {line[:80]!r}")
        content = texts.get(path.encode(), b"")  # grep says nothing of an empty file
        one = DropIn(path, text(content), hashlib.sha256(content).hexdigest())
        found.setdefault(name, []).append(one)
    return {name: tuple(each) for name, each in found.items()}


def parse_manager(data: bytes) -> frozenset[str]:
    """Names in the environment of systemd's manager, below `= manager` of the same section. Raises Malformed."""
    for block in ("\n" + text(data)).split("\n= ")[1:]:
        name, _, rest = block.partition("\n")
        if name == "manager":
            return frozenset(entry.partition("=")[0] for entry in _strings(_data(rest)))
    raise Malformed("busctl said nothing of the manager's environment")


def parse_sessions(data: str) -> tuple[Session, ...]:
    """Lines `ID LEADER`; 0 is a leader that is gone. Raises Malformed."""
    sessions = []
    for line in whole_lines(data):
        name, _, leader = line.rpartition(" ")
        sessions.append(Session(name, whole_number(leader)))
    return tuple(sessions)
