"""One host with many cards for a whole module of tests: each test has a spec on a card and a port of its own there.

A `Lane` says of any process what the daemon said and did about it: its attribution in the host's status, the signals
it got, the events that name it, and how it ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from harness import TestHost
from harness.bystanders import Bystander, process

from tests.hosts.edges import looks
from tests.hosts.running import Daemon, sglang

HOST = "a"
CARDS = 16
LONG_S = 60.0
STRAY = {"STANDIN_STRAY": "1"}  # the ranks leave the unit's cgroup, outlive the launcher, and ignore TERM


class Ground:
    """The host and its daemon. There are as many lanes as it has cards; `reached` is the machine that SSH reaches."""

    def __init__(self, daemon: Daemon, host: TestHost, reached: TestHost | None = None, **road: Any) -> None:
        self.daemon, self.host = daemon, host
        self._numbers = itertools.count()
        self._held: list[Lane] = []
        daemon.put_host(HOST, reached or host, period="1s", **road)

    def lane(self, **more: Any) -> Lane:
        """One that was never declared."""
        return Lane(self.daemon, self.host, next(self._numbers), more)

    def hold_cards(self, count: int) -> None:
        """So many lanes hold their card and port for a moment, all at once since that is quicker."""
        self._held = [self.lane() for _ in range(count)]
        for lane in self._held:
            lane.run()
        for lane in self._held:
            self.daemon.ready(lane.name, LONG_S)
        for lane in self._held:
            lane.run(run=False)
        for lane in self._held:
            self.daemon.reason(lane.name, "Stopped", LONG_S)
            assert not lane.holders()

    def held_lane(self) -> Lane:
        """One that has held its card and port since boot, and is stopped and clean."""
        return self._held.pop(0)


class Lane:
    """One spec of one rank, and what is said of processes that are in its way."""

    def __init__(self, daemon: Daemon, host: TestHost, number: int, more: Mapping[str, Any]) -> None:
        self.daemon, self.host = daemon, host
        self.name, self.gpu, self.port = f"m{number}", number, 30001 + number
        self.unit = f"stoker-{self.name}.server.service"
        env = {"STANDIN_TELL_CARD": "1", **more.get("env", {})}
        self._spec = sglang(HOST, [number], port=self.port, **{**more, "env": env})

    # ---- what a person does ----

    def run(self, **more: Any) -> None:
        self.daemon.put_spec(self.name, self._spec | more)

    def up(self, **more: Any) -> dict[str, Any]:
        """Declares it, and waits until it generates."""
        self.run(**more)
        return self.daemon.ready(self.name, LONG_S)

    def kill_launcher(self) -> Bystander:
        """SIGKILL of the unit's main process, once its rank has left; the rank."""
        rank = process(self.host, *self.holders())
        self.host.sh(f"kill -KILL {self.show('MainPID')}")
        return rank

    def remove(self) -> None:
        self.daemon.call("DELETE", f"/api/v1/servingspecs/{self.name}")

    # ---- what the host shows ----

    def show(self, name: str) -> str:
        return self.host.sh(f"systemctl show {self.unit} -p {name} --value").stdout.strip()

    def holders(self) -> list[int]:
        return sorted({holder.pid for holder in self.host.gpu_holders() if holder.gpu == self.gpu})

    def marks(self) -> dict[str, str]:
        """What the daemon's own units have in their environment."""
        store = self.host.read("/var/lib/stoker/fence").split()[0]
        spec = self.daemon.get_spec(self.name)["metadata"]["uid"]
        return {"STOKER_STORE": store, "STOKER_SPEC": spec, "SPT_NOENV": "1"}

    # ---- what the daemon says ----

    def stray(self, who: Bystander) -> dict[str, Any] | None:
        """The host's status about that process."""
        found = self.daemon.get_host(HOST)["status"].get("strays", [])
        return next((one for one in found if one["pid"] == who.pid), None)

    def attributed(self, who: Bystander, owner: str, proof: str) -> dict[str, Any]:
        """Waits until the host's status gives it that owner, with that in its proof."""
        said: list[Any] = []

        def met() -> bool:
            said[:] = [self.stray(who)]
            return said[0] is not None and said[0]["owner"] == owner and proof in said[0]["proof"]

        try:
            self.daemon.wait(met, f"pid {who.pid} is {owner}, {proof}", LONG_S, self.name)
        except AssertionError as error:
            raise AssertionError(f"the last attribution: {said}\n{error}") from None
        found: dict[str, Any] = said[0]
        return found

    def blocked(self, reason: str, *parts: str) -> str:
        """Waits until it is not started for that reason, with all of that said; what is said."""

        def met() -> bool:
            said = self.daemon.condition("spec", self.name, "Ready")
            return said["reason"] == reason and all(part in said["message"] for part in parts)

        self.daemon.wait(met, f"{self.name} waits: {reason} {parts}", LONG_S, self.name)
        assert self.show("MainPID") == "0"
        return str(self.daemon.condition("spec", self.name, "Ready")["message"])

    def told(self, reason: str, *parts: str) -> dict[str, Any]:
        """An event of its spec with that reason and all of that in its text."""
        found = [e for e in self.daemon.events(self.name) if e["reason"] == reason]
        named = [e for e in found if all(part in e["message"] for part in parts)]
        assert named, (reason, parts, [e["message"] for e in found])
        return dict(named[0])

    def signals(self, who: Bystander) -> list[dict[str, Any]]:
        """Every event of a signal that names the pid as a target, oldest first."""
        found = [e for e in self.daemon.events(HOST) if e["action"].startswith("signal-")]
        return [e for e in reversed(found) if str(who.pid) in _targets(e)]

    # ---- how it ends ----

    def cleared(self, who: Bystander, owner: str, proof: str, signals: list[str]) -> None:
        """It ends by exactly these signals, each told with its proof."""
        self.daemon.wait(lambda: not who.alive, f"pid {who.pid} ends", LONG_S, self.name)
        self.daemon.wait(lambda: len(self.signals(who)) >= len(signals), "its signals are told", LONG_S, self.name)
        told = self.signals(who)
        assert [e["action"] for e in told] == [f"signal-{name}" for name in signals], told
        for event in told:
            line = next(part for part in event["message"].split("; ") if f"pid {who.pid} (" in part)
            assert owner in line, line
            assert proof in line, line
            assert f"{who.pid} ok" in event["evidence"].split("\n"), event
            assert (event["result"], event["reason"], event["kind"]) == ("ok", "OrphanWorkers", "Host")

    def serves_on_a_clean_card(self, but: Bystander) -> dict[str, Any]:
        """It generates, and not one of its starts found memory of others on its card; `but` is gone."""
        instance = self.daemon.ready(self.name, LONG_S)
        assert not but.alive
        assert but.pid not in self.holders()
        found = self.host.sh(f"journalctl -q -o cat | grep -o ' card {self.gpu}: .*'").stdout.splitlines()
        assert set(found) == {f" card {self.gpu}: 0 MiB held by others, 0 MiB not yet given back"}, found
        return instance

    def left_alone(self, *others: Bystander, during: int = 3) -> None:
        """After so many looks more they live, and none of them was ever signalled."""
        looks(self.daemon, during)
        for other in others:
            assert other.alive, f"pid {other.pid} is dead"
            assert self.signals(other) == []

    def left_alone_since(self, who: Bystander, told: list[dict[str, Any]], during: int = 6) -> None:
        """After so many looks more it got no signal beside those."""
        looks(self.daemon, during)
        assert self.signals(who) == told


def _targets(event: Mapping[str, Any]) -> list[str]:
    """`signal-term 12, 13 on a: …` → the pids."""
    listed: str = event["message"].split(" ", 1)[1].split(f" on {HOST}: ")[0]
    return listed.split(", ")


@contextmanager
def unreadable(who: Bystander, name: str) -> Iterator[None]:
    """/proc/PID/NAME cannot be opened by anybody on the host."""
    path = f"/proc/{who.pid}/{name}"
    who.host.sh(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/no-file\")'"
        f" && mount --bind /tmp/no-file {path} && ! cat {path}"
    )
    try:
        yield
    finally:
        who.host.sh(f"umount {path}; rm -f /tmp/no-file")
