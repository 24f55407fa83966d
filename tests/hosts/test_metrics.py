"""What `/metrics` says of a real host, held against the host itself."""

from __future__ import annotations

import time

import pytest
from harness import TestHost
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
UNIT = "stoker-m.server.service"
AT = {"host": "a", "spec": "m", "role": "server"}


def scraped(daemon: Daemon) -> list[Sample]:
    """All samples of one scrape, by the client library's own parser."""
    text = daemon.call("GET", "/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(daemon: Daemon, name: str, /, **labels: str) -> float | None:
    """The one sample of that name and these labels; None when it is absent."""
    found = [one.value for one in scraped(daemon) if one.name == name and labels.items() <= one.labels.items()]
    assert len(found) <= 1, (name, labels)
    return found[0] if found else None


def smi(host: TestHost, field: str) -> list[float]:
    text = host.sh(f"nvidia-smi --query-gpu={field} --format=csv,noheader,nounits").stdout
    return [float(line) for line in text.splitlines()]


def test_metrics_say_what_the_host_says_and_forget_what_is_gone(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0]))
    began = time.time()
    instance = daemon.ready("m", 90)
    daemon.wait(lambda: value(daemon, "stoker_instance_ready_generation", **AT) == 1, "ready is shown", 60)
    used, total = smi(host, "memory.used"), smi(host, "memory.total")
    for gpu in (0, 1):
        at = {"host": "a", "gpu": str(gpu)}
        assert value(daemon, "stoker_gpu_memory_total_bytes", **at) == total[gpu] * 2**20
        assert value(daemon, "stoker_gpu_memory_used_bytes", **at) == used[gpu] * 2**20
        assert value(daemon, "stoker_gpu_temperature_celsius", **at) == smi(host, "temperature.gpu")[gpu]
        assert value(daemon, "stoker_gpu_usable", **at) == 1
        assert value(daemon, "stoker_gpu_owner", owner=("managed", "free")[gpu], **at) == 1
    assert value(daemon, "stoker_instance_state", state="active", **AT) == 1
    assert value(daemon, "stoker_instance_condition", type="Ready", status="True", **AT) == 1
    startup_s = value(daemon, "stoker_instance_startup_seconds", **AT)
    assert startup_s is not None
    assert 0 < startup_s < time.time() - began + 1
    assert value(daemon, "stoker_startup_seconds_count") == 1
    ready_at = value(daemon, "stoker_instance_last_ready_timestamp_seconds", **AT)
    assert ready_at is not None
    assert began - 1 <= ready_at <= time.time()
    assert value(daemon, "stoker_connections_open") == 1
    assert (value(daemon, "stoker_last_look_bytes", host="a") or 0) > 1000
    assert value(daemon, "stoker_condition", kind="ServingSpec", name="m", type="Ready", status="True") == 1
    assert value(daemon, "stoker_host_acting", host="a") == 1

    host.sh(f"kill -KILL {instance['main_pid']}")
    daemon.wait(lambda: value(daemon, "stoker_instance_systemd_restarts", **AT) == 1, "NRestarts is shown", 60)
    daemon.ready("m", 90)
    assert value(daemon, "stoker_instance_restarts_total", **AT) == 0
    daemon.put_spec("m", sglang("a", [0], contextLength=4096))
    daemon.wait(lambda: value(daemon, "stoker_instance_restarts_total", **AT) == 1, "our restart is shown", 60)
    daemon.wait(lambda: value(daemon, "stoker_instance_ready_generation", **AT) == 2, "ready anew", 90)

    host.write("/etc/stoker/hold", b"maintenance\n")
    daemon.wait(lambda: value(daemon, "stoker_host_withheld", host="a", reason="Held") == 1, "held is shown", 60)
    host.sh("rm /etc/stoker/hold")
    daemon.wait(lambda: value(daemon, "stoker_host_acting", host="a") == 1, "free again", 60)
    assert value(daemon, "stoker_host_withheld", host="a") is None
    daemon.ok("PUT", "/api/v1/pause")
    daemon.wait(lambda: value(daemon, "stoker_paused") == 1, "paused is shown", 60)
    daemon.ok("DELETE", "/api/v1/pause")

    daemon.ok("DELETE", "/api/v1/servingspecs/m")
    daemon.wait(lambda: "m" not in {one.labels.get("spec") or one.labels.get("name") for one in scraped(daemon)},
                "no series of the spec", 90)  # fmt: skip
    daemon.ok("DELETE", "/api/v1/hosts/a")
    daemon.wait(lambda: not [one for one in scraped(daemon) if "a" in one.labels.values()], "no series of the host", 60)


def failed_dials(daemon: Daemon) -> list[str]:
    """Results of connections that could not be made."""
    dialled = [one for one in scraped(daemon) if one.name == "stoker_connects_total"]
    return [one.labels["result"] for one in dialled if one.labels["result"] != "ok" and one.value]


def test_host_that_is_not_seen_says_nothing_of_its_cards(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host, mode="observe")
    daemon.wait(lambda: value(daemon, "stoker_gpu_usable", host="a", gpu="1") == 1, "cards are shown", 60)
    assert value(daemon, "stoker_host_withheld", host="a", reason="ObserveOnly") == 1
    host.cut_link()
    daemon.wait(lambda: value(daemon, "stoker_host_up", host="a") == 0, "down is shown", 90)
    names = {one.name for one in scraped(daemon) if one.labels.get("host") == "a"}
    assert not {name for name in names if name.startswith(("stoker_gpu", "stoker_strays", "stoker_drift"))}
    age = value(daemon, "stoker_observation_age_seconds", host="a")
    assert age is not None
    daemon.wait(lambda: bool(failed_dials(daemon)), "a failed dial is counted", 60)
    daemon.wait(lambda: value(daemon, "stoker_connections_open") == 0, "no connection is open", 60)
