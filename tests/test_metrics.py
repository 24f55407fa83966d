"""What `/metrics` says: the text, what is absent, what vanishes, and what it costs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Line

from daemon.domain.status import Condition, Event, Reason
from daemon.metrics import Metrics, Sample
from daemon.metrics.families import (
    FAMILIES,
    MAX_DRIFT,
    MAX_LABEL,
    Blocks,
    Lines,
    host_blocks,
    object_blocks,
)
from daemon.metrics.samples import FleetSample, GpuSample, HostNow, HostSample, InstanceSample, ObjectSample
from daemon.sampled import Shown
from daemon.store import Store
from daemon.store.rows import Change, Kind, StoredStatus

pytestmark = pytest.mark.fleet
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
GPU = GpuSample(0, "GPU-1", "NVIDIA H200", "580.1", 143771, 1024, 50, 41, "", "managed")
INSTANCE = InstanceSample("m", "server", "active", "True", "True", "True", "Generated", 3, 2, 1.5e9, 1, 4, 312.5)
IDLE = FleetSample()
HOST = HostSample(
    "a", True, "enforce", "", 0.4, 30_000, {"foreign": 2}, [("m", "file", "text")], (GPU,), (INSTANCE,)
)  # fmt: skip


def lines(*blocks: Blocks, hosts: tuple[HostNow, ...] = (), fleet: FleetSample = IDLE) -> list[Line]:
    """All samples of the text, read by the client library's own parser."""
    text = Metrics(lambda: Sample(blocks, hosts, fleet)).render().decode()
    return [line for family in text_string_to_metric_families(text) for line in family.samples]


def values(found: list[Line], name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by their labels' values in the order of the table."""
    order = next((family.labels for family in FAMILIES if family.name == name), ())
    return {tuple(line.labels[label] for label in order): line.value for line in found if line.name == name}


def test_every_family_is_told_with_its_type_and_named_as_prometheus_names() -> None:
    text = Metrics(Sample).render().decode()
    told = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP") and len(line.split()) > 3}
    assert helped == set(told)
    for family in FAMILIES:
        assert told[family.name] == family.type
        assert family.name.endswith("_total") == (family.type == "counter")
        assert not family.name.endswith(("_mib", "_ms", "_percent", "_pct"))
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_host_with_its_cards_and_instances_is_told() -> None:
    found = lines(host_blocks(HOST), hosts=(HostNow("a", 1.5, True, 7),))
    assert values(found, "stoker_host_up") == {("a",): 1}
    assert values(found, "stoker_observation_age_seconds") == {("a",): 1.5}
    assert values(found, "stoker_gpu_memory_used_bytes") == {("a", "0"): 1024 * 1024 * 1024}
    assert values(found, "stoker_gpu_utilization_ratio") == {("a", "0"): 0.5}
    assert values(found, "stoker_gpu_usable") == {("a", "0"): 1}
    assert values(found, "stoker_gpu_owner") == {("a", "0", "managed"): 1}
    assert values(found, "stoker_instance_state") == {("a", "m", "server", "active"): 1}
    assert values(found, "stoker_instance_systemd_restarts") == {("a", "m", "server"): 1}
    assert values(found, "stoker_instance_restarts_total") == {("a", "m", "server"): 4}
    assert values(found, "stoker_instance_startup_seconds") == {("a", "m", "server"): 312.5}
    assert values(found, "stoker_instance_generation") == {("a", "m", "server"): 3}
    assert values(found, "stoker_instance_ready_generation") == {("a", "m", "server"): 2}
    ready = {key[-1]: value for key, value in values(found, "stoker_instance_condition").items() if "Ready" in key}
    assert ready == {"True": 1, "False": 0, "Unknown": 0}
    assert values(found, "stoker_strays")[("a", "foreign")] == 2
    assert values(found, "stoker_strays")[("a", "orphan-proven")] == 0
    assert values(found, "stoker_drift_fields")[("a", "file")] == 1
    assert values(found, "stoker_watch_signals_total") == {("a",): 7}


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    unknown = replace(GPU, memory_total_mib=None, memory_used_mib=None, utilization_pct=None, temperature_c=None,
                      owner=None)  # fmt: skip
    unseen = replace(INSTANCE, active="", ready="Unknown", ready_generation=0, ready_at_s=None, systemd_restarts=None,
                     startup_s=None)  # fmt: skip
    found = lines(host_blocks(HostSample("a", False, "observe", "Unreachable", gpus=(unknown,), instances=(unseen,))))
    names = {line.name for line in found if line.labels.get("host") == "a"}
    assert names == {
        "stoker_host_up", "stoker_host_mode", "stoker_host_acting", "stoker_host_withheld", "stoker_gpu_info",
        "stoker_gpu_usable", "stoker_instance_condition", "stoker_instance_reason", "stoker_instance_generation",
        "stoker_instance_restarts_total",
    }  # fmt: skip
    assert values(found, "stoker_host_withheld") == {("a", "Unreachable"): 1}
    assert values(found, "stoker_host_acting") == {("a",): 0}
    assert values(lines(hosts=(HostNow("a", None),)), "stoker_observation_age_seconds") == {}


def test_card_that_cannot_be_used_says_why() -> None:
    found = lines(host_blocks(replace(HOST, gpus=(replace(GPU, fault="GpuLost"),))))
    assert values(found, "stoker_gpu_usable") == {("a", "0"): 0}
    assert values(found, "stoker_gpu_fault") == {("a", "0", "GpuLost"): 1}


HOSTILE = 'x"} 1\nstoker_paused 1\n\\\udce9é'


def test_text_of_a_host_can_forge_no_line_and_is_bounded() -> None:
    drift = [("m", "running", HOSTILE), ("m", "running", "y" * 5000)]
    found = lines(host_blocks(replace(HOST, drift=drift, gpus=(replace(GPU, product=HOSTILE),))))
    assert values(found, "stoker_paused") == {(): 0}
    told = {key[-1] for key in values(found, "stoker_drift")}
    assert told == {HOSTILE.replace("\udce9", "?"), "y" * MAX_LABEL}
    (info,) = values(found, "stoker_gpu_info")
    assert info[3] == HOSTILE.replace("\udce9", "?")


def test_series_of_drift_are_bounded_and_all_counted() -> None:
    found = lines(host_blocks(replace(HOST, drift=[("m", "running", f"env.{n}") for n in range(500)])))
    assert len(values(found, "stoker_drift")) == MAX_DRIFT
    assert values(found, "stoker_drift_fields")[("a", "running")] == 500


def test_family_that_is_not_in_the_table_and_wrong_labels_are_refused() -> None:
    with pytest.raises(KeyError):
        Lines().add("stoker_other", (), 1)
    with pytest.raises(ValueError):
        Lines().add("stoker_host_up", ("a", "b"), 1)


def test_the_daemon_itself_is_told() -> None:
    fleet = FleetSample(3, 1.25, 2, {"ok": 5, "ConnectTimeout": 1}, True, 9)
    found = lines(fleet=fleet)
    assert values(found, "stoker_queue_depth") == {(): 3}
    assert values(found, "stoker_queue_oldest_seconds") == {(): 1.25}
    assert values(found, "stoker_connections_open") == {(): 2}
    assert values(found, "stoker_connects_total") == {("ok",): 5, ("ConnectTimeout",): 1}
    assert (values(found, "stoker_paused"), values(found, "stoker_run_epoch")) == ({(): 1}, {(): 9})
    ((version, python),) = values(found, "stoker_build_info")
    assert version
    assert python.startswith("3.")
    assert values(found, "process_resident_memory_bytes")[()] > 1e7


class Counted(Store):
    """A store that notes of whom the status was asked."""

    asked: list[str]

    async def status(self, kind: Kind, uid: str) -> StoredStatus | None:
        self.asked.append(uid)
        return await super().status(kind, uid)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Counted]:
    async with Counted.open(tmp_path / "stoker.db") as opened:
        assert isinstance(opened, Counted)
        opened.asked = []
        yield opened


async def say(store: Store, kind: Kind, name: str, status: str) -> str:
    uid = (await store.put(kind, name, {}, actor="t", now=NOW)).object.uid
    said = Condition("Ready", status, Reason.GENERATED)  # type: ignore[arg-type]
    await store.put_status(kind, uid, {"observedGeneration": 1}, [said], NOW)
    return uid


async def test_series_of_what_is_deleted_vanish_and_of_what_stays_stay(store: Counted) -> None:
    shown = Shown(store)
    with store.subscribe() as changes:
        await say(store, "Host", "a", "True")
        uid = await say(store, "ServingSpec", "m", "False")
        await say(store, "ServingSpec", "n", "True")
        for change in changes.taken():
            await shown.follow(change)
        found = lines(*shown.blocks())
        assert values(found, "stoker_condition")[("ServingSpec", "m", "Ready", "False")] == 1
        assert values(found, "stoker_condition_reason")[("ServingSpec", "m", "Ready", "Generated")] == 1
        assert values(found, "stoker_generation")[("Host", "a")] == 1
        await store.delete("ServingSpec", "m", NOW)
        await store.finish_delete("ServingSpec", uid, now=NOW)
        for change in changes.taken():
            await shown.follow(change)
    found = lines(*shown.blocks())
    assert {line.labels["name"] for line in found if "name" in line.labels} == {"a", "n"}


async def test_change_of_one_object_reads_that_one_alone(store: Counted) -> None:
    shown = Shown(store)
    uids = [await say(store, "ServingSpec", f"s{number}", "True") for number in range(20)]
    await shown.read_all()
    store.asked.clear()
    await shown.follow(Change("ServingSpec", "s7", "status"))
    assert store.asked == [uids[7]]


async def test_pause_is_shown_while_it_lasts(store: Counted) -> None:
    shown = Shown(store)
    with store.subscribe() as changes:
        for flag in (True, False):
            await store.set_paused(flag, "ann", NOW)
            for change in changes.taken():
                await shown.follow(change)
            assert shown.paused is flag


async def test_writes_are_timed_and_their_events_counted(store: Counted) -> None:
    metrics = Metrics(Sample)
    store.time_writes(time.perf_counter, metrics.wrote)
    await store.put("Host", "a", {}, actor="t", now=NOW)
    for _ in range(2):  # the second is counted into the first's row, but it was said
        await store.add_event(Event(Reason.OK, "x", "Host", "a", severity="Warning"), NOW)
    with pytest.raises(ValueError, match="JSON"):
        await store.put("Host", "b", {"x": float("nan")}, actor="t", now=NOW)
    text = metrics.render().decode()
    assert 'stoker_events_total{severity="Warning"} 2.0' in text
    assert 'stoker_events_total{severity="Normal"} 1.0' in text
    assert "stoker_store_write_seconds_count 3.0" in text


def test_a_thousand_hosts_cost_a_join(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = tuple(replace(GPU, index=number, uuid=f"GPU-{number:036d}") for number in range(8))
    instances = tuple(replace(INSTANCE, spec=f"model-{number}") for number in range(2))
    conditions = [(name, "True", "OK") for name in ("Reachable", "Observed", "GPUsReady", "Clean", "Acting")]
    names = [f"gpu-{number:04d}.example" for number in range(1000)]
    blocks = [host_blocks(replace(HOST, host=name, gpus=gpus, instances=instances)) for name in names]
    blocks += [object_blocks(ObjectSample("Host", name, 1, 1, conditions)) for name in names]
    metrics = Metrics(lambda: Sample(blocks, [HostNow(name, 1.0) for name in names]))
    began = time.process_time()
    text = metrics.render()
    took_s = time.process_time() - began
    per_host = text.count(b'gpu-0500.example"')
    with capsys.disabled():
        print(f"\n1,000 hosts of 8 cards: scrape {took_s * 1000:.0f} ms of CPU, {len(text) / 1e6:.1f} MB, "
              f"{per_host} series a host")  # fmt: skip
    assert per_host <= 150
    assert took_s < 0.5  # making the lines anew takes seconds
