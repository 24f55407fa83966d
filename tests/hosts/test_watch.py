"""The watch on real hosts: how soon a killed process is heard of, and that the watch comes back after every gap."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from harness import TestHost

from daemon.bus import Manners
from daemon.controller import Controller
from daemon.domain.host import HostSpec
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.settings import Settings
from daemon.ssh import Road, Roads, SshSettings
from daemon.store import Store
from tests.hosts.running import Daemon, sglang
from tests.hosts.watching import Victim, ear, host_spec, until

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
KILLS, LOOKED_AT, POLLED = 200, 30, 20
POLL_S = 2.0
QUIET_S = 0.5
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IMPATIENT = Manners(answer_s=1.0, ping_s=1.0, spacing_s=0.05)
PATIENCE_S = 60.0


class Looks(Roads):
    """The pool, noting when each look begins; a blind one gives roads on which no socket can be opened."""

    def __init__(self, key: Path, *, blind: bool) -> None:
        super().__init__(SshSettings(identity=key), lambda _: None)
        self.began: list[float] = []
        self.ended = time.monotonic()
        self.under_way = 0
        self._blind = blind

    def idle(self) -> bool:
        """Whether the last pass is over: it ends soon after its look."""
        return not self.under_way and time.monotonic() - self.ended > QUIET_S

    def road(self, host: str, spec: HostSpec) -> Road:
        kind = _Blind if self._blind else _Noted
        return kind(super().road(host, spec), self)


class _Blind:
    def __init__(self, road: Road, looks: Looks) -> None:
        self._road, self._looks = road, looks
        self.run, self.close = road.run, road.close

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        if verb != "observe":
            return await self._road.call(verb, stdin, timeout_s)
        self._looks.began.append(time.monotonic())
        self._looks.under_way += 1
        try:
            return await self._road.call(verb, stdin, timeout_s)
        finally:
            self._looks.under_way -= 1
            self._looks.ended = time.monotonic()


class _Noted(_Blind):
    def __init__(self, road: Road, looks: Looks) -> None:
        super().__init__(road, looks)
        self.open_socket = road.open_socket  # type: ignore[attr-defined]


async def look_begins(host: TestHost, victim: Victim, folder: Path, times: int, *, watched: bool) -> list[float]:
    """Seconds from each kill to the beginning of the controller's next look.

    It is killed while no look is under way; without a watch, at any phase of the period.
    """
    looks, found = Looks(host.ssh_key, blind=not watched), list[float]()
    period = "30s" if watched else f"{POLL_S:.0f}s"
    async with Store.open(folder / f"{watched}.db") as store:
        said = host_spec(host, period=period).model_dump(mode="json")
        await store.put("Host", "a", said, actor="t", now=NOW)
        declared = ServingSpec.model_validate(sglang("a", [0])).model_dump(mode="json")
        await store.put("ServingSpec", "m", declared, actor="t", now=NOW)
        controller = Controller(store, Settings(data=folder), roads=looks)
        running = asyncio.create_task(controller.run())
        await until(lambda: controller.metrics.render().find(b'stoker_watch_up{host="a"} %.1f' % watched) > 0, 40)
        while len(found) < times:
            await until(looks.idle, 60)
            if not watched:
                await asyncio.sleep(random.uniform(0, POLL_S))
            before = len(looks.began)
            at = await victim.kill()
            await until(lambda before=before: len(looks.began) > before, 60)
            found.append(looks.began[before] - at)
        running.cancel()
        await asyncio.wait([running], timeout=10)
        assert running.cancelled()
    return found


def told(name: str, seconds: Sequence[float]) -> str:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return (
        f"{name:<46} median {cuts[49] * 1000:8.1f} ms   p99 {cuts[98] * 1000:8.1f} ms   "
        f"longest {max(seconds) * 1000:8.1f} ms   of {len(seconds)}"
    )


async def test_g_a_killed_main_process_is_heard_of_at_once(
    host: TestHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, heard = Victim(host), list[float]()
    async with ear(host) as hears:
        await hears.up()
        for _ in range(KILLS):
            await hears.quiet()
            before = len(hears.pokes)
            at = await victim.kill()
            await until(lambda before=before: len(hears.pokes) > before)
            heard.append(hears.pokes[before] - at)
    begun = await look_begins(host, victim, tmp_path, LOOKED_AT, watched=True)
    polled = await look_begins(host, victim, tmp_path, POLLED, watched=False)
    with capsys.disabled():
        print()
        print(told("SIGKILL to the event at the daemon", heard))
        print(told("SIGKILL to the beginning of the look, watched", begun))
        print(told(f"the same without a watch, a look each {POLL_S:g} s", polled))
        print(f"{'':<46} of a period of 10 s, the default, the median would be 5 s; unwatched hosts have 5 s: 2.5 s")
    assert median(heard) < 0.2
    assert median(heard) < median(polled) / 4
    assert median(begun) < median(polled) / 2


async def test_a_user_who_may_change_nothing_may_watch(host: TestHost) -> None:
    victim = Victim(host)
    async with ear(host, user="alice") as hears:
        await hears.up()
        await hears.quiet()
        before = hears.watches.signals("a")
        await victim.kill()
        await until(lambda: hears.watches.signals("a") > before)


async def test_a_reload_of_systemd_leaves_the_watch_and_a_new_systemd_begins_another(host: TestHost) -> None:
    victim = Victim(host)
    async with ear(host) as hears:
        await hears.up()
        talk = hears.watches._hosts["a"].talk
        await asyncio.to_thread(host.sh, "systemctl daemon-reload")
        await _hears(hears, victim)
        assert hears.watches._hosts["a"].talk is talk
        await asyncio.to_thread(host.sh, "systemctl daemon-reexec")
        await until(lambda: hears.watches._hosts["a"].talk is not talk)
        await hears.up()
        await _hears(hears, victim)


async def test_a_frozen_bus_is_an_ended_watch_that_comes_back(host: TestHost) -> None:
    victim = Victim(host)
    async with ear(host, manners=IMPATIENT) as hears:
        await hears.up()
        await asyncio.to_thread(host.sh, "kill -STOP $(pidof dbus-daemon)")
        host.on_clean(lambda: host.sh("kill -CONT $(pidof dbus-daemon)", check=False))
        await until(lambda: not hears.watches.is_up("a"))
        await until(lambda: hears.events != [])
        assert hears.events[0].reason == Reason.WATCH_UNAVAILABLE
        assert "no answer within 1 s" in hears.events[0].message
        await asyncio.to_thread(host.sh, "kill -CONT $(pidof dbus-daemon)")
        await hears.up()
        await _hears(hears, victim)


async def test_watches_that_end_leave_nothing_on_the_host(host: TestHost) -> None:
    """The bus drops its clients twenty times; the one connection and its sshd stay as they were."""
    async with ear(host, manners=IMPATIENT) as hears:
        await hears.up()
        count = "ls /proc/$(pgrep -n -f 'sshd: root')/fd | wc -l; busctl list --no-legend | grep -c '^:'"
        before = (await asyncio.to_thread(host.sh, count)).stdout
        for _ in range(20):
            watch = hears.watches._hosts["a"]
            talk, watch.failures = watch.talk, 0
            assert talk is not None
            talk._stream.close()
            await until(lambda talk=talk: hears.watches._hosts["a"].talk is not talk)
            await hears.up()
        await until(lambda: host.sh(count).stdout == before)


async def _hears(hears: Any, victim: Victim) -> None:
    await hears.quiet()
    before = hears.watches.signals("a")
    await victim.kill()
    await until(lambda: hears.watches.signals("a") > before)


# The whole daemon


def watched(daemon: Daemon) -> None:
    daemon.wait(lambda: daemon.metric("stoker_watch_up", host="a") == 1, "watched", PATIENCE_S)


def killed_and_back(daemon: Daemon, host: TestHost) -> float:
    """Seconds from the kill of the engine until the daemon shows another one Ready."""
    before = daemon.ready("m", PATIENCE_S)
    at = time.monotonic()
    host.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(
        lambda: daemon.instance("m")["main_pid"] not in (before["main_pid"], None)
        and daemon.condition("spec", "m", "Ready")["status"] == "True",
        "another process Ready", PATIENCE_S, "m",
    )  # fmt: skip
    return time.monotonic() - at


def test_the_watch_returns_after_all_sshd_were_killed_and_after_a_reboot(daemon: Daemon, host: TestHost) -> None:
    """A look each 5 min only: what is noticed, the watch noticed."""
    daemon.put_host("a", host, period="5m")
    daemon.put_spec("m", sglang("a", [0]))
    watched(daemon)
    killed_and_back(daemon, host)
    host.sh("pkill -KILL sshd; systemctl restart ssh")
    daemon.wait(lambda: daemon.metric("stoker_watch_up", host="a") == 0, "not watched", PATIENCE_S)
    watched(daemon)
    killed_and_back(daemon, host)
    host.reboot()
    daemon.wait(lambda: daemon.ready("m", PATIENCE_S) != {}, "Ready after the reboot", PATIENCE_S)
    watched(daemon)
    killed_and_back(daemon, host)
    assert not [event for event in daemon.events("a") if event["reason"] == Reason.WATCH_UNAVAILABLE]


def test_a_daemon_that_watches_a_host_that_is_cut_off_still_ends_soon(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host, period="5m")
    watched(daemon)
    host.cut_link()
    began = time.monotonic()
    daemon.kill(signal.SIGTERM)
    assert time.monotonic() - began < 15
    assert "Traceback" not in daemon.log_tail()


def test_where_forwarding_is_forbidden_the_period_shortens_and_the_reason_is_said(
    daemon: Daemon, host: TestHost
) -> None:
    host.write("/etc/ssh/sshd_config.d/stoker.conf", b"AllowStreamLocalForwarding no\n")
    host.sh("systemctl reload ssh")
    host.on_clean(lambda: host.sh("rm -f /etc/ssh/sshd_config.d/stoker.conf; systemctl reload ssh", check=False))
    daemon.put_host("a", host, period="5m")

    def said() -> list[str]:
        return [e["message"] for e in daemon.events("a") if e["reason"] == Reason.WATCH_UNAVAILABLE]

    daemon.wait(lambda: said() != [], "the reason", PATIENCE_S)
    looks = daemon.metric("stoker_reconcile_total", result="ok")
    began = time.monotonic()
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= looks + 3, "three looks", PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert daemon.metric("stoker_watch_up", host="a") == 0
    assert len(said()) == 1
    assert "AllowStreamLocalForwarding" in said()[0]
    assert "every 5 s" in said()[0]
