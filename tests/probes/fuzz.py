"""Damaged answers, many of them: `make fuzz N=200000`, its figures kept in FUZZ_RESULT.txt; a few in every test run.

Two kinds of damage, held to two rules. On its way: the answer of the helper is the undamaged one or none, since its
sum tells. Before it was framed, where a tool's own output is torn: nothing raises, and only what is read from the torn
section changes. A section that is only cut shows no row that it did not show before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from daemon.domain.observation import Observation, Unknown
from daemon.probes import nvidia_smi, process, socket, systemd
from daemon.probes.health import parse_health
from daemon.probes.kernel_log import parse_kernel_log
from daemon.probes.probe import ProbeAnswer, parse_probe
from daemon.probes.report import Answer, parse_observation, parse_partial
from daemon.probes.space import parse_space
from tests.probes.damage import Step, damaged, steps
from tests.probes.recordings import Recording, driver_texts, looks, probes, recordings, undamaged
from tests.provenance import made

Counts = Counter[str]

# What each value of an observation is read from.
_PROCESSES = {"processes", "candidates", "uids", "users", "environ", "environ_ok", "nvfds"}
_UNITS = {"asked", "units", "loaded", "texts", "paths", "dropins", "exe"} | _PROCESSES
_CARDS = {"gpus", "health", "kernel"}
SOURCES: Mapping[str, set[str]] = {
    "gpus": _CARDS, "ailments": _CARDS, "health": {"health"}, "kernel": {"kernel"}, "space": {"space"},
    "warnings": {"gpus"}, "apps": {"apps"}, "listeners": {"sockets"}, "sessions": {"sessions"},
    "fence": {"fence"}, "hold": {"hold"}, "identity": {"meta"}, "processes": _PROCESSES, "units": _UNITS,
    "other_units": _UNITS | {"others"}, "inherited": {"loaded"},
}  # fmt: skip
_ROWS = {"gpus": "gpus", "apps": "apps", "listeners": "sockets", "sessions": "sessions", "processes": "processes",
         "space": "space"}  # fmt: skip
_STATUSES = (0, 0, 0, 0, 1, 2, 14, 27, 124, 127, 255)
_PARSERS: tuple[Callable[[bytes], object], ...] = (
    process.parse_environ, process.parse_links, process.parse_uids, process.parse_users, process.parse_nvidia_files,
    process.pairs, process.lines_of_files, process.arguments, process.cgroup_path, systemd.parse_loaded,
    systemd.parse_manager, lambda data: systemd.parse_show(data, ["a.service"]),
    lambda data: systemd.parse_sessions(process.text(data)), lambda data: systemd.parse_files(process.text(data), {}),
    lambda data: systemd.parse_dropins(process.text(data), {}), lambda data: systemd.timespan_us(process.text(data)),
    lambda data: socket.parse_listeners(process.text(data)), lambda data: parse_space(process.text(data)),
    lambda data: parse_kernel_log(process.text(data)),
)  # fmt: skip


def on_its_way(one: Recording, other: Recording, drawn: list[Step]) -> str:
    """The whole answer is damaged: it is the undamaged one, or none."""
    found = parse_partial(damaged(one.raw, drawn, other.raw), one.nonce)
    if isinstance(found, Answer):
        assert found == one.answer
        return "on its way: unharmed"
    if all(kind == "cut" for kind, *_ in drawn):
        for name, section in found.sections.items():
            assert not section.complete or section == one.sections[name]
    return "on its way: unknown"


def before_framing(one: Recording, name: str, exit_status: int, drawn: list[Step], other: bytes) -> str:
    """One section is damaged: nothing raises, what comes of it can be written down, and no other value changes."""
    torn = replace(one.sections[name], exit_status=exit_status, data=damaged(one.sections[name].data, drawn, other))
    answer = replace(one.answer, sections={**one.sections, name: torn})
    if one.answer.verb == "probe":
        said = parse_probe(answer)
        assert isinstance(said, ProbeAnswer)
        _written(said)
        assert isinstance(said.strangers, (tuple, Unknown))
        return "probe's section: read"
    was, found = undamaged(one), parse_observation(answer, "a", 1.0)
    if isinstance(found, Unknown):
        assert name == "meta"
        return "section: unknown look"
    changed = [key for key in Observation.__slots__ if getattr(found, key) != getattr(was, key)]
    for key in changed:
        assert key not in SOURCES or name in SOURCES[key], f"{name} changed {key}"
        _written(getattr(found, key))
    unknown = any(isinstance(getattr(found, key), Unknown) for key in changed)
    return f"section: {'unknown' if unknown else 'another value' if changed else 'unharmed'}"


def cut_short(one: Recording, key: str, at: int) -> str:
    """A tool stopped in the middle without a word: no row is another than it was."""
    name = _ROWS[key]
    data = one.sections[name].data
    torn = replace(one.sections[name], data=data[: at % (len(data) + 1)])
    was = undamaged(one)
    found = parse_observation(replace(one.answer, sections={**one.sections, name: torn}), "a", 1.0)
    assert isinstance(found, Observation)
    rows, before = getattr(found, key), getattr(was, key)
    if isinstance(rows, Unknown):
        return "cut: unknown"
    assert not isinstance(before, Unknown)
    assert set(rows) <= set(before)
    return "cut: rows as they were"


def by_itself(data: bytes, other: bytes, exit_status: int, drawn: list[Step]) -> str:
    """Each parser by itself: those of the driver never raise, the others nothing but what `report.read` catches."""
    torn = damaged(data, drawn, other)
    text = process.text(torn)
    gpus, _ = nvidia_smi.parse_gpus(exit_status, text)
    apps = nvidia_smi.parse_apps(exit_status, text)
    if exit_status not in (0, nvidia_smi.PARTIAL_EXIT):
        assert isinstance(gpus, Unknown)
        assert isinstance(apps, Unknown)
    health = parse_health(exit_status, text)
    _written((gpus, apps, health))
    for parse in _PARSERS:
        try:
            _written(parse(torn))
        except (ValueError, LookupError):
            continue
    return "parsers: read"


def _written(value: object) -> None:
    """Raises when any text in it could not be stored or sent."""
    json.dumps(_plain(value), ensure_ascii=False).encode()


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _section_of(one: Recording) -> st.SearchStrategy[tuple[Recording, str]]:
    return st.tuples(st.just(one), st.sampled_from(sorted(one.sections)))


SHARES = {"wire": 0.35, "section": 0.35, "cut": 0.1, "parsers": 0.2}


def checks(count: Counts) -> dict[str, Callable[[], None]]:
    """Each check as a function for hypothesis to call."""
    texts = st.one_of(st.sampled_from(driver_texts()), st.sampled_from([r.raw for r in recordings()]))
    status = st.sampled_from(_STATUSES)

    @given(st.sampled_from(recordings()), st.sampled_from(recordings()), steps())
    def wire(one: Recording, other: Recording, drawn: list[Step]) -> None:
        count[on_its_way(one, other, drawn)] += 1

    torn = st.sampled_from(looks() + probes()).flatmap(_section_of)

    @given(torn, status, steps(), texts)
    def section(which: tuple[Recording, str], exit_status: int, drawn: list[Step], other: bytes) -> None:
        count[before_framing(*which, exit_status, drawn, other)] += 1

    rows = [(one, key) for one in looks() for key, name in _ROWS.items() if name in one.sections]

    @given(st.sampled_from(rows), st.integers(0, 2**20))
    def cut(which: tuple[Recording, str], at: int) -> None:
        count[cut_short(*which, at)] += 1

    @given(st.sampled_from(driver_texts()), texts, status, steps())
    def parsers(data: bytes, other: bytes, exit_status: int, drawn: list[Step]) -> None:
        count[by_itself(data, other, exit_status, drawn)] += 1

    return {"wire": wire, "section": section, "cut": cut, "parsers": parsers}


_CHUNK = 5000  # what hypothesis remembers of its inputs grows with them
_ALL = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def run(name: str, inputs: int, first: int) -> Counts:
    """So many inputs to one check, in pieces with seeds of their own. Raises on the first that breaks a rule."""
    count = Counts()
    for number, start in enumerate(range(0, inputs, _CHUNK)):
        profile = settings(
            max_examples=min(_CHUNK, inputs - start), deadline=None, database=None, derandomize=False,
            suppress_health_check=_ALL, phases=(Phase.generate, Phase.shrink),
        )  # fmt: skip
        seed(first + number)(profile(checks(count)[name]))()
    return count


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--inputs", type=int, default=200_000)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--result", type=Path)
    asked = ask.parse_args()
    began, count, told = time.monotonic(), Counts(), list(made())
    with ProcessPoolExecutor() as pool:
        for one in [pool.submit(run, name, round(asked.inputs * share), asked.seed) for name, share in SHARES.items()]:
            count += one.result()
    lines = [*told, f"seeds from {asked.seed}", f"inputs: {count.total()}, rules broken: 0"]
    lines += [f"{name}: {number}" for name, number in sorted(count.items())]
    text = "\n".join([*lines, f"in {time.monotonic() - began:.0f} s"]) + "\n"
    print(text, end="")
    if asked.result is not None:
        asked.result.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
