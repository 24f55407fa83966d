"""SIGTERM ends the daemon within seconds, with status 0, whatever is under way on a host, also on one cut off."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from harness import TestHost

from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
SOON_S = 6.0  # closing a connection to a frozen peer takes 2 s
REQUEST_S = 10.0  # what a request under way is given, see api.serve


def a_look(daemon: Daemon, host: TestHost) -> None:
    """Its nvidia-smi hangs."""
    host.gpu_mode("hang")
    host.wait_until("ls -d /run/stoker/call.* && pgrep nvidia-smi")


def a_change(daemon: Daemon, host: TestHost) -> None:
    """It waits for the lock of changes, which somebody holds."""
    host.sh("systemd-run --quiet --unit=holds-the-lock flock /var/lib/stoker/lock sleep 60")
    host.on_clean(lambda: host.sh("systemctl stop holds-the-lock", check=False))
    host.wait_until("! flock -n /var/lib/stoker/lock true")
    daemon.put_spec("m", sglang("a", [0, 1], port=30002))
    host.wait_until("pgrep -f '[s]toker-host put-unit'")


def nothing(daemon: Daemon, host: TestHost) -> None:
    """Only its watch, and what is begun once the link is cut."""


def ended_after(daemon: Daemon) -> float:
    """How long it took from SIGTERM; the status must be 0, and no task have failed."""
    assert daemon.process is not None
    began = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    status = daemon.process.wait(60)
    took = time.monotonic() - began
    assert status == 0, daemon.log_tail()
    assert "Traceback" not in daemon.log_tail()
    daemon.process = None
    return took


@pytest.mark.parametrize("cut", [False, True], ids=["reached", "cut-off"])
@pytest.mark.parametrize("under_way", [nothing, a_look, a_change])
def test_it_ends_soon(
    daemon: Daemon, host: TestHost, under_way: Callable[[Daemon, TestHost], None], cut: bool, tell: Callable[..., None]
) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    under_way(daemon, host)
    if cut:
        host.cut_link()
    if cut and under_way is nothing:
        daemon.wait(lambda: daemon.condition("host", "a", "Reachable")["status"] != "True", "cut off", 60)
    took = ended_after(daemon)
    tell(f"{under_way.__name__}{', cut off' if cut else ''}: ended {took:.1f} s after SIGTERM")
    assert took < SOON_S
    host.restore_link()
    host.gpu_mode()
    host.sh("systemctl stop holds-the-lock", check=False)
    daemon.start()
    daemon.ready("m", 90)


def test_it_ends_though_a_request_waits_for_a_host_that_is_cut_off(
    daemon: Daemon, host: TestHost, tell: Callable[..., None]
) -> None:
    daemon.put_host("a", host)
    daemon.wait(lambda: daemon.condition("host", "a", "Reachable")["status"] == "True", "reached", 60)
    host.gpu_mode("hang")
    came = list[int]()

    def ask() -> None:
        try:
            came.append(daemon.call("POST", "/api/v1/hosts/a/record").status_code)
        except httpx.HTTPError:
            came.append(0)

    asking = threading.Thread(target=ask)
    asking.start()
    host.wait_until("test $(ls -d /run/stoker/call.* | wc -l) -ge 2")
    host.cut_link()
    took = ended_after(daemon)
    asking.join(60)
    tell(f"a request under way, cut off: ended {took:.1f} s after SIGTERM")
    assert came[0] == 0 or came[0] >= 500
    assert took < REQUEST_S + SOON_S
