"""An answer of `stoker-host` taken apart, and the look made into one `Observation`.

Called by `observe`, `execute` and `ready` with the bytes that came over the road, and by `replay`. Whatever the bytes
are, nothing here raises: what is not whole is `Unknown`, with the reason (law 1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from daemon.domain.errors import ended
from daemon.domain.health import KernelLog
from daemon.domain.observation import (
    DropIn,
    Environment,
    Fence,
    Gpu,
    Identity,
    Loaded,
    Observation,
    Process,
    Unit,
    UnitFile,
    Unknown,
)
from daemon.domain.status import Reason
from daemon.probes import nvidia_smi, process, socket, systemd
from daemon.probes.health import ailments, judged, parse_health
from daemon.probes.kernel_log import parse_kernel_log
from daemon.probes.leftovers import parse_leftovers
from daemon.probes.process import Malformed, text
from daemon.probes.space import parse_space

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_DETAIL_CHARS = 500
_BEGIN = re.compile(rb"begin ([a-z-]{1,32}) ([0-9]{1,6})\n")
_SECTION = re.compile(rb"section ([a-z0-9_]{1,32}) exit=([0-9]{1,3}) ms=([0-9]{1,9}) bytes=([0-9]{1,9})\n")
_END = re.compile(rb"end exit=([0-9]{1,3})\n")
_SUM = re.compile(rb"sum ([0-9a-f]{64})\n")
SUMMED_FROM = 3  # the first version of the helper whose answers are followed by their sum
_BUS = re.compile(r"Failed to (connect to|get D-Bus).*bus|D-Bus connection|No medium found", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Section:
    """One tool's output with its exit status. 124 is its time limit, 127 no such tool, 27 too long to send."""

    name: str
    exit_status: int
    ms: int
    data: bytes
    complete: bool = True  # false: it was cut on the way, and nothing in it counts

    @property
    def text(self) -> str:
        """The data, decoded with replacement."""
        return text(self.data)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: its end mark arrived. `absent` is why a section that is not in it is not known."""

    verb: str
    version: int
    exit_status: int
    sections: Mapping[str, Section]
    absent: Reason = Reason.LOOK_INCOMPLETE

    @property
    def error(self) -> str:
        """What a refused or failed verb said, "" when it said nothing."""
        section = self.sections.get("error")
        return "" if section is None else section.text.strip()


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer whose end mark never came: why, and the sections that came before, the last perhaps not complete."""

    why: Unknown
    sections: Mapping[str, Section]
    version: int = 0


def parse_answer(data: bytes, nonce: str) -> Answer | Unknown:
    """Everything between the begin and the end mark of this nonce; what stands before and after is not ours."""
    found = parse_partial(data, nonce)
    return found if isinstance(found, Answer) else found.why


def parse_partial(data: bytes, nonce: str) -> Answer | Cut:
    """The same, with what came of an answer that was cut."""
    if len(data) > MAX_ANSWER_BYTES:
        return Cut(Unknown(Reason.TRUNCATED, f"{len(data)} bytes came"), {})
    mark = b"@" + nonce.encode() + b" "
    start = data.find(mark + b"begin ")
    if start < 0:
        return Cut(Unknown(Reason.LOOK_INCOMPLETE, f"no answer in {len(data)} bytes: {text(data[-200:])!r}"), {})
    begin = _BEGIN.match(data, start + len(mark))
    if begin is None:
        return Cut(Unknown(Reason.LOOK_INCOMPLETE, "the answer has no beginning"), {})
    sections: dict[str, Section] = {}
    at = begin.end()
    while data.startswith(mark, at):
        at += len(mark)
        end = _END.match(data, at)
        if end is not None:
            whole = Answer(text(begin[1]), int(begin[2]), int(end[1]), sections)
            return _undamaged(data, start, end.end(), mark, whole)
        head = _SECTION.match(data, at)
        if head is None:
            break
        name, stop = text(head[1]), head.end() + int(head[4])
        if data[stop : stop + 1] != b"\n" or name in sections:
            last = Section(name, int(head[2]), int(head[3]), data[head.end() : stop], complete=False)
            why = _ended_after(sections)
            return Cut(why, {**sections, name: last} if name not in sections else sections, int(begin[2]))
        sections[name] = Section(name, int(head[2]), int(head[3]), data[head.end() : stop])
        at = stop + 1
    return Cut(_ended_after(sections), sections, int(begin[2]))


def _ended_after(sections: dict[str, Section]) -> Unknown:
    return Unknown(Reason.LOOK_INCOMPLETE, f"the answer ends after section {next(reversed(sections), 'none')}")


def _undamaged(data: bytes, start: int, stop: int, mark: bytes, answer: Answer) -> Answer | Cut:
    """The answer when the sum behind it is that of its bytes: lengths alone show no changed byte."""
    told = _SUM.match(data, stop + len(mark)) if data.startswith(mark, stop) else None
    if told is None and answer.version < SUMMED_FROM:
        return answer
    if told is None or told[1].decode() != hashlib.sha256(data[start:stop]).hexdigest():
        why = Unknown(Reason.LOOK_INCOMPLETE, "the answer was damaged on its way: its sum is missing or another")
        doubtful = {name: replace(section, complete=False) for name, section in answer.sections.items()}
        return Cut(why, doubtful, answer.version)
    return answer


def failure(section: Section, name: str) -> Unknown | None:
    """Why a section says nothing, by its exit status; None when it may be read."""
    if section.exit_status == 0:
        return None
    said = section.text.strip()[-_DETAIL_CHARS:]
    detail = f"{name}: {ended(section.exit_status, said)}"
    match section.exit_status:
        case 124 | 137:
            return Unknown(Reason.TOOL_TIMED_OUT, detail)
        case 127:
            return Unknown(Reason.TOOL_MISSING, detail)
        case 27:
            return Unknown(Reason.TRUNCATED, f"{name}: too long to send")
        case 78:
            return Unknown(Reason.NOT_SYSTEMD, f"{name}: PID 1 is not systemd")
        case _:
            return Unknown(Reason.BUS_UNAVAILABLE if _BUS.search(said) else Reason.TOOL_FAILED, detail)


def read(answer: Answer, name: str, parse: Callable[[Section], T]) -> T | Unknown:
    """A section's value, or why there is none."""
    section = answer.sections.get(name)
    if section is None or not section.complete:
        return _absent(answer, name)
    if (broken := failure(section, name)) is not None:
        return broken
    try:
        return parse(section)
    except (ValueError, LookupError) as error:
        return Unknown(Reason.UNPARSABLE, f"{name}: {error}"[:_DETAIL_CHARS])


def _absent(answer: Answer, name: str) -> Unknown:
    """Why a section is not there whole."""
    if name in answer.sections:
        return Unknown(Reason.TRUNCATED, f"{name}: its end did not come")
    return Unknown(answer.absent, f"section {name} is missing")


def parse_observation(answer: Answer, host: str, at_s: float) -> Observation | Unknown:
    """One look. Unknown as a whole only when the helper itself failed or the host's identity could not be read."""
    if answer.verb != "observe" or answer.exit_status != 0:
        return Unknown(Reason.LOOK_INCOMPLETE, f"{answer.verb} ended with {answer.exit_status}: {answer.error}")
    identity = read(answer, "meta", _identity)
    if isinstance(identity, Unknown):
        return Unknown(Reason.LOOK_INCOMPLETE, identity.detail)
    (gpus, warnings), (kernel, log) = _gpus(answer), _kernel(answer)
    health = _driver(answer, "health", parse_health)
    wrong = ailments(gpus, health, log)
    environ = read(answer, "environ", lambda section: process.parse_environ(section.data))
    processes = _processes(answer, environ)
    units = _units(answer, processes, environ)
    return Observation(
        host=host,
        at_s=at_s,
        identity=identity,
        gpus=gpus if isinstance(gpus, Unknown) else judged(gpus, wrong),
        apps=_driver(answer, "apps", nvidia_smi.parse_apps),
        processes=processes,
        listeners=read(answer, "sockets", lambda section: socket.parse_listeners(section.text)),
        units=units,
        other_units=_other_units(answer, units),
        sessions=read(answer, "sessions", lambda section: systemd.parse_sessions(section.text)),
        fence=_optional(answer, "fence", _fence),
        hold=_optional(answer, "hold", lambda section: section.text.strip()),
        warnings=warnings,
        inherited=read(answer, "loaded", lambda section: systemd.parse_manager(section.data)),
        helper=answer.version,
        ailments=wrong,
        health=health,
        kernel=kernel,
        space=read(answer, "space", lambda section: parse_space(section.text)),
        leftovers=read(answer, "shm", lambda one: parse_leftovers(one.text)) if "shm" in answer.sections else None,
    )


def _identity(section: Section) -> Identity:
    values = process.values_of(section.text)
    if len(values["boot_id"]) != 36:
        raise Malformed("no boot id")
    monotonic_us = process.whole_number(values["monotonic_us"])
    return Identity(
        machine_id=values["machine_id"],
        boot_id=values["boot_id"],
        container=values.get("container") or "none",
        systemd=int(values["systemd"]) if values["systemd"].isdigit() else 0,
        uptime_s=monotonic_us / 1_000_000,
        monotonic_us=monotonic_us,
    )


def _gpus(answer: Answer) -> tuple[tuple[Gpu, ...] | Unknown, tuple[Unknown, ...]]:
    section = answer.sections.get("gpus")
    if section is None or not section.complete:
        return _absent(answer, "gpus"), ()
    return nvidia_smi.parse_gpus(section.exit_status, section.text)


def _driver(answer: Answer, name: str, parse: Callable[[int, str], T]) -> T | Unknown:
    """What a question to the driver told; its exit statuses are nvidia-smi's own."""
    section = answer.sections.get(name)
    if section is None or not section.complete:
        return _absent(answer, name)
    return parse(section.exit_status, section.text)


def _kernel(answer: Answer) -> tuple[KernelLog | Unknown, KernelLog]:
    """The kernel log, and what is known of it all the same when it could not be read this time."""
    section = answer.sections.get("kernel")
    said = section.text if section is not None and section.complete else ""
    known = parse_kernel_log(said[: said.rfind("\n") + 1])  # a last line without its end was cut
    return read(answer, "kernel", lambda _: known), known


def _optional(answer: Answer, name: str, parse: Callable[[Section], T]) -> T | Unknown | None:
    """A small file: exit status 1 says that there is none."""
    section = answer.sections.get(name)
    if section is not None and section.exit_status == 1 and not section.data:
        return None
    return read(answer, name, parse)


def _fence(section: Section) -> Fence:
    store, epoch, run = " ".join(process.whole_lines(section.text)).split()
    return Fence(store, process.whole_number(epoch), run)


Environ = dict[int, tuple[tuple[str, str], ...]]


def _processes(answer: Answer, environ: Environ | Unknown) -> tuple[Process, ...] | Unknown:
    """The candidates, each whole; a missing part of any makes all of them unknown."""
    if "processes" not in answer.sections:
        return _absent(answer, "processes")
    uids = read(answer, "uids", lambda section: process.parse_uids(section.data))
    users = read(answer, "users", lambda section: process.parse_users(section.data))
    minors = read(answer, "nvfds", lambda section: process.parse_nvidia_files(section.data))
    readable = read(answer, "environ_ok", lambda section: frozenset(process.numbers_in(section.text)))
    chosen = read(answer, "candidates", _candidates)
    for part in (uids, users, minors, chosen):
        if isinstance(part, Unknown):
            return part
    assert not isinstance(uids, Unknown)
    assert not isinstance(users, Unknown)
    assert not isinstance(minors, Unknown)
    assert not isinstance(chosen, Unknown)
    facts = process.Facts(
        uids=uids,
        users=users,
        environ=None if isinstance(environ, Unknown) else environ,
        readable=frozenset() if isinstance(readable, Unknown) else readable,
        minors=minors,
    )
    return read(answer, "processes", lambda section: process.parse_processes(section.data, *chosen, facts))


def _candidates(section: Section) -> tuple[tuple[int, ...], frozenset[int]]:
    pids, gone, _ = section.text.split("\n")
    return process.numbers_of(pids), frozenset(process.numbers_of(gone))


def _asked(section: Section) -> tuple[list[str], list[str]]:
    units, others, _ = section.text.split("\n")
    return units.split(), others.split()


def _units(
    answer: Answer, processes: tuple[Process, ...] | Unknown, environ: Environ | Unknown
) -> tuple[Unit, ...] | Unknown:
    if "units" not in answer.sections:
        return _absent(answer, "units")
    asked = read(answer, "asked", _asked)
    if isinstance(asked, Unknown):
        return asked
    shown = read(answer, "units", lambda section: systemd.parse_show(section.data, asked[0]))
    if isinstance(shown, Unknown):
        return shown
    loaded = read(answer, "loaded", lambda section: systemd.parse_loaded(section.data))
    texts = read(answer, "texts", lambda section: dict(process.pairs(section.data)))
    files, dropins = _files(answer, texts), _dropins(answer, texts)
    mains = _mains(answer, processes, environ)

    def build(_: Section) -> tuple[Unit, ...]:
        return tuple(
            systemd.unit(
                name,
                values,
                _loaded_of(name, loaded),
                files.get(name),
                mains.get(process.whole_number(values["MainPID"])),
                None if isinstance(dropins, Unknown) else dropins.get(name, ()),
            )
            for name, values in zip(asked[0], shown, strict=True)
        )

    return read(answer, "units", build)


def _loaded_of(name: str, loaded: dict[str, Loaded | Unknown] | Unknown) -> Loaded | Unknown:
    if isinstance(loaded, Unknown):
        return loaded
    return loaded.get(name, Unknown(Reason.LOOK_INCOMPLETE, f"busctl said nothing of {name}"))


Texts = dict[bytes, bytes]


def _files(answer: Answer, texts: Texts | Unknown) -> dict[str, UnitFile]:
    """Unit files; none at all when they could not be read, which `Unit.file` None says of each."""
    if isinstance(texts, Unknown):
        return {}
    files = read(answer, "paths", lambda section: systemd.parse_files(section.text, texts))
    return {} if isinstance(files, Unknown) else files


def _dropins(answer: Answer, texts: Texts | Unknown) -> dict[str, tuple[DropIn, ...]] | Unknown:
    """What lies in the units' own folders besides their files."""
    if isinstance(texts, Unknown):
        return texts
    return read(answer, "dropins", lambda section: systemd.parse_dropins(section.text, texts))


def _mains(
    answer: Answer, processes: tuple[Process, ...] | Unknown, environ: Environ | Unknown
) -> dict[int, Environment]:
    """The main processes that could be read: those whose executable or folder the look asked for."""
    links = read(answer, "exe", lambda section: process.parse_links(section.data))
    if isinstance(links, Unknown) or isinstance(processes, Unknown) or isinstance(environ, Unknown):
        return {}
    return {
        found.id.pid: Environment(
            argv=found.argv,
            env=environ.get(found.id.pid, ()),
            cwd=links[found.id.pid].get("cwd"),
            exe=links[found.id.pid].get("exe"),
            uid=found.uid,
        )
        for found in processes
        if found.id.pid in links and found.marks is not None
    }


def _other_units(answer: Answer, units: tuple[Unit, ...] | Unknown) -> tuple[tuple[str, str], ...] | Unknown:
    """Name and active state of the units in candidates' cgroups, those asked for included."""
    asked = read(answer, "asked", _asked)
    if isinstance(asked, Unknown) or isinstance(units, Unknown):
        return asked if isinstance(asked, Unknown) else Unknown(Reason.LOOK_INCOMPLETE, "units are unknown")
    shown = read(answer, "others", lambda section: systemd.parse_show(section.data, asked[1]))
    if isinstance(shown, Unknown):
        return shown
    states = [(name, values.get("ActiveState", "")) for name, values in zip(asked[1], shown, strict=True)]
    return tuple(states) + tuple((unit.name, unit.active_state) for unit in units)
