"""One of three hosts is cut off: it alone turns unknown, nothing is done to it, and the others do not notice.

The observation period is the host's `period`: the time from one look to the next. An observation is good until the
next look is due (period and its jitter of a tenth) and for one period more, in which that look is to answer; then what
it said is Unknown. From the last good look that is at most 2.1 periods; how long a look may take before it is given up
(`look_timeout_s`) does not come into it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import pytest
from harness import TestHost

from tests.hosts.conftest import MakeHost
from tests.hosts.edges import PATH, UNIT
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
PERIOD_S = 5.0
JITTER = 1.1
UNKNOWN_AFTER_S = PERIOD_S * (JITTER + 1)
SEEN_LATE_S = 2.0  # this test asks a few times a second, of a daemon that shares two cores with three hosts
STOPPED_S, CUT_S = 20.0, 120.0
BACK_WITHIN_S = 3 * PERIOD_S + 10  # the longest wait between two tries, and one try that fails
NAMES = ("a", "b", "c")
SPECS = {name: f"m-{name}" for name in NAMES}


@dataclass
class Sampling:
    """When each look of each host began, worked out of the age that the metrics show, and what went wrong meanwhile.

    One begins at the time of asking less the age; of several samples of one look the quickest answer counts.
    """

    looks: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in NAMES})
    samples: int = 0
    failures: list[str] = field(default_factory=list)

    def take(self, daemon: Daemon) -> None:
        asked = time.monotonic()
        text = daemon.call("GET", "/metrics").text
        took = time.monotonic() - asked
        self.samples += 1
        for name, age in re.findall(r'^stoker_observation_age_seconds\{host="(\w+)"\} (\S+)$', text, re.MULTILINE):
            began, known = asked + took / 2 - float(age), self.looks[name]
            if not known or began - known[-1][0] > 1:
                known.append((began, took))
            elif took < known[-1][1]:
                known[-1] = (began, took)

    def longest_s(self, name: str) -> float:
        """The longest time from the beginning of one look to that of the next."""
        begins = [began for began, _ in self.looks[name]]
        return max(after - before for before, after in pairwise(begins))


@contextmanager
def sampling(daemon: Daemon) -> Iterator[Sampling]:
    """Reads the metrics several times a second meanwhile."""
    found, stop = Sampling(), threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            try:
                found.take(daemon)
            except httpx.HTTPError as error:
                found.failures.append(repr(error))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def said_of(daemon: Daemon, name: str) -> dict[str, str]:
    """The conditions of a host and of its spec."""
    found = {}
    for object_, prefix in ((daemon.get_host(name), ""), (daemon.get_spec(SPECS[name]), "spec ")):
        for one in object_["status"]["conditions"]:
            found[prefix + one["type"]] = one["status"]
    return found


def unknown(daemon: Daemon, name: str) -> bool:
    """Whether nothing that only a look can tell is claimed of the host and its spec."""
    said = said_of(daemon, name)
    looked = ("GPUsReady", "Clean", "spec Ready", "spec Available", "spec Loaded", "spec Drifted")
    return {said[one] for one in looked} == {"Unknown"} and "True" not in (said["Reachable"], said["Observed"])


def known(daemon: Daemon, name: str) -> bool:
    said = said_of(daemon, name)
    return {said[one] for one in ("Reachable", "Observed", "GPUsReady", "Clean", "spec Ready")} == {"True"}


def footprint(host: TestHost) -> dict[str, str]:
    """What any change by a verb would show: the start of the unit, its files, the fence, the processes on the cards."""
    files = f"/var/lib/stoker {PATH.replace(UNIT, unit_of(host))} /etc/systemd/system/multi-user.target.wants"
    return {
        "unit": host.sh(f"systemctl show {unit_of(host)} -p InvocationID,NRestarts,ActiveState,UnitFileState").stdout,
        "files": host.sh(f"find {files} -type f -printf '%p %T@ %i\\n' -exec sha256sum {{}} +").stdout,
        "holders": str(host.gpu_holders()),
    }  # fmt: skip


def unit_of(host: TestHost) -> str:
    return UNIT.replace("stoker-m.", f"stoker-m-{host.name[-1]}.")


def acted(daemon: Daemon) -> dict[str, int]:
    """How many commands that change something went to each host and its spec."""
    events = daemon.events()
    return {n: len([e for e in events if e["action"] and e["name"] in (n, SPECS[n])]) for n in NAMES}


def waited(daemon: Daemon, what: str, met: Any, limit_s: float) -> float:
    """How long it took."""
    began = time.monotonic()
    daemon.wait(met, what, limit_s)
    return time.monotonic() - began


@pytest.fixture
def three(daemon: Daemon, make_host: MakeHost) -> dict[str, TestHost]:
    """Three hosts, each serving a spec of its own."""
    hosts = {name: make_host(f"cut-{name}") for name in NAMES}
    for name, host in hosts.items():
        daemon.put_host(name, host, period=f"{PERIOD_S:.0f}s")
        daemon.put_spec(SPECS[name], sglang(name, [0, 1]))
    for name in NAMES:
        daemon.ready(SPECS[name])
    for name in NAMES:
        daemon.wait(lambda name=name: known(daemon, name), f"{name} known", 30)  # type: ignore[misc]
    return hosts


def sshd(host: TestHost, signal: str) -> int:
    """Signals every sshd of the host; how many there were."""
    pids = host.sh("pgrep -x sshd").stdout.split()
    host.sh(f"kill -{signal} {' '.join(pids)}")
    return len(pids)


def test_one_host_cut_off_turns_unknown_and_the_other_two_are_looked_at_in_time(
    daemon: Daemon, three: dict[str, TestHost], tell: Callable[..., None]
) -> None:
    host = three["a"]
    before, actions = footprint(host), acted(daemon)
    assert sum(actions.values()) >= 3 * 3, "this test does not see what is done"
    host.on_clean(lambda: sshd(host, "CONT"))
    host.on_clean(host.restore_link)
    with sampling(daemon) as sampled:
        stopped = sshd(host, "STOP")
        age = daemon.metric("stoker_observation_age_seconds", host="a")
        until_unknown = age + waited(daemon, "a unknown, its sshd stopped", lambda: unknown(daemon, "a"), 60)
        time_stopped = stay_unknown(daemon, STOPPED_S)
        sshd(host, "CONT")
        back_after_stop = waited(daemon, "a known again", lambda: known(daemon, "a"), 90)

        host.cut_link()
        age = daemon.metric("stoker_observation_age_seconds", host="a")
        until_unknown_by_cut = age + waited(daemon, "a unknown, its link cut", lambda: unknown(daemon, "a"), 60)
        time_cut = stay_unknown(daemon, CUT_S)
        during = acted(daemon)
        host.restore_link()
        back_after_cut = waited(daemon, "a known again", lambda: known(daemon, "a"), 90)
    worst = {name: sampled.longest_s(name) for name in NAMES}
    rests = ", ".join(f"{name} {worst[name]:.1f} s" for name in NAMES)
    looked = f"period {PERIOD_S:.0f} s; longest from look to look: {rests}; {len(sampled.looks['b'])} looks of b seen"
    told = "{} for {:.0f} s: unknown {:.1f} s after the last good look, known again {:.1f} s after the end"
    tell(
        looked,
        told.format(f"{stopped} sshd stopped", time_stopped, until_unknown, back_after_stop),
        told.format("link cut", time_cut, until_unknown_by_cut, back_after_cut),
    )
    assert until_unknown <= UNKNOWN_AFTER_S + SEEN_LATE_S
    assert until_unknown_by_cut <= UNKNOWN_AFTER_S + SEEN_LATE_S
    assert max(back_after_stop, back_after_cut) <= BACK_WITHIN_S
    assert during == actions == acted(daemon)
    assert footprint(host) == before
    assert sampled.samples > CUT_S / 2, "the ages were looked at too seldom"
    assert not sampled.failures
    assert worst["a"] > CUT_S
    assert max(worst["b"], worst["c"]) <= 2 * PERIOD_S


def stay_unknown(daemon: Daemon, seconds: float) -> float:
    """The host stays unknown and its neighbours known all that time; how long it was watched."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        assert unknown(daemon, "a"), said_of(daemon, "a")
        for name in ("b", "c"):
            said = said_of(daemon, name)
            assert said["spec Ready"] == said["Observed"] == "True", (name, said)
        time.sleep(0.5)
    return time.monotonic() - began
