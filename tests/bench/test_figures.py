"""The figures. The recorded look needs no root; the rest is measured on real test hosts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from statistics import median

import pytest

from daemon.controller import Controller
from daemon.declared import declaration
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, Unit, Unknown
from daemon.memory import HostMemory
from daemon.probes.report import Answer, parse_answer, parse_observation
from daemon.reconcile import wanted
from daemon.settings import load_settings
from daemon.ssh import Road, Roads, SshSettings
from daemon.store import Store
from daemon.verbs import request
from tests.bench import look
from tests.bench.figures import Figures
from tests.bench.stage import PLACES, PROCESSES, QUIET, UNITS, Stage

pytestmark = pytest.mark.bench
DOWN = UNITS[0]


class Spy:
    """A road that notes when looks are answered."""

    def __init__(self, road: Road, notes: Notes) -> None:
        self._road, self._notes = road, notes

    def __getattr__(self, name: str) -> object:
        return getattr(self._road, name)

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        answer = await self._road.call(verb, stdin, timeout_s)
        if verb == "observe":
            self._notes.looks.append((time.monotonic(), stdin, answer))
        return answer


class Notes(Roads):
    """The pool, with a spy on every road."""

    def __init__(self, settings: SshSettings) -> None:
        super().__init__(settings, lambda _: None)
        self.looks: list[tuple[float, bytes, bytes]] = []

    def road(self, host: str, spec: HostSpec) -> Road:
        return Spy(super().road(host, spec), self)  # type: ignore[return-value]

    def down(self) -> Iterator[tuple[float, bool]]:
        """When each look that shows the unit down arrived, and whether its cards were empty then."""
        for arrived, stdin, raw in self.looks:
            answer = parse_answer(raw, stdin[6:38].decode())
            found = parse_observation(answer, "a", 0.0) if isinstance(answer, Answer) else answer
            unit = found.unit(DOWN) if isinstance(found, Observation) else None
            if isinstance(unit, Unit) and unit.active_state in ("inactive", "failed"):
                assert isinstance(found, Observation)
                assert not isinstance(found.gpus, Unknown)
                yield arrived, not any(gpu.memory_used_mib for gpu in found.gpus if gpu.index in PLACES["m"])


def test_cpu_from_the_bytes_to_an_empty_plan(figures: Figures) -> None:
    recorded = look.load()
    memory, now_s, took = HostMemory(), 1000.0, list[float]()
    _, seen = recorded.plan(memory, now_s)
    memory.probes = look.generated(seen, now_s)
    for _ in range(200):
        now_s += 0.01
        began = time.process_time()
        plan, _ = recorded.plan(memory, now_s)
        took.append((time.process_time() - began) * 1000)
        left = [plan.actions, plan.blocked, plan.drift, plan.probes, plan.questions, plan.unclaimed]
        assert not any(left), left
    figures.spread("daemon CPU from bytes to an empty plan", took, "ms", 3.0, "process time, the recorded look")


def test_memory_with_three_hosts(figures: Figures, stage: Stage) -> None:
    assert stage.daemon.process is not None
    stage.daemon.wait(lambda: stage.looks() >= 60, "60 looks", 60)
    with open(f"/proc/{stage.daemon.process.pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    rss, anon = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
    note = f"VmRSS after {stage.looks():.0f} looks at 3 hosts, {anon:.0f} MiB of it anonymous"
    figures.add("memory of the daemon", rss, "MiB", 100.0, note)


async def test_from_a_unit_seen_down_to_its_start(figures: Figures, stage: Stage) -> None:
    """The unit is stopped by hand. All stamps are of one kernel clock, the hosts' and ours."""
    stage.daemon.put_host("a", stage.host, period="2s")
    stage.daemon.kill()
    settings = load_settings({"STOKER_DATA": str(stage.daemon.data), "STOKER_SSH_IDENTITY": str(stage.daemon.ssh_key)})
    notes = Notes(SshSettings(identity=settings.ssh_identity, known_hosts=settings.ssh_known_hosts))
    from_free, from_down = list[float](), list[float]()
    async with Store.open(settings.store_path, sole=True) as store:
        running = asyncio.create_task(Controller(store, settings, roads=notes).run())
        for _ in range(10):
            await asyncio.to_thread(stage.wait_running)
            notes.looks.clear()
            await asyncio.to_thread(stage.host.sh, f"systemctl stop {DOWN}")
            await asyncio.to_thread(stage.wait_running)
            started, seen = stage.started_at(DOWN), list(notes.down())
            from_down.append(started - seen[0][0])
            from_free.append(started - next(arrived for arrived, free in seen if free))
        running.cancel()
        await asyncio.wait([running])
    note = "from the arrival of the first look that shows it down to systemd beginning the start"
    figures.spread("unit seen down to its start", from_down, "s", 0.5, note)
    note = "from the first look that also shows its cards empty: nothing is started on memory still held"
    figures.spread("  once its cards are empty", from_free, "s", None, note)


async def test_the_reference_look(figures: Figures, stage: Stage) -> None:
    stage.daemon.kill()
    async with Store.open(stage.daemon.data / "stoker.db") as store:
        declared = await declaration(store, "a")
        uid = store.uid
    assert declared is not None
    stage.wait_running()
    asked = request(look.NONCE, wanted(declared.declared, declared.retired).lines(5000))
    assert int(stage.host.sh("ls -d /proc/[0-9]* | wc -l").stdout) >= PROCESSES
    with_smi, raw = stage.look(asked, 10)
    answer = parse_answer(raw, look.NONCE)
    assert isinstance(answer, Answer)
    told = {name: answer.sections[name].data for name in ("gpus", "apps", "health")}
    told["health"] = told["health"].partition(b"\n")[2]  # the helper's own first line
    stage.instant_smi(**told)
    looks, raw = stage.look(asked, 25, patience_s=15)
    recorded = look.recorded_of(raw, uid, declared)
    seen = recorded.observation()
    parts = (seen.gpus, seen.apps, seen.processes, seen.units, seen.listeners, seen.sessions, seen.health, seen.space)
    for part in parts:
        assert not isinstance(part, Unknown), part
    if os.environ.get("STOKER_BENCH_RECORD"):
        recorded.save()
    quiet = [took for took, others in looks if others < QUIET]
    note = (
        f"on the host, nvidia-smi replaced by a printer; {median(took for took, _ in with_smi):.0f} with the stand-in"
    )
    if len(quiet) >= 20:
        figures.spread("reference look, wall", quiet, "ms", 120.0, note)
    else:  # says more of who else is on this machine than of the look
        others = median(others for _, others in looks)
        note = f"not held to the target: others used {others:.1f} of {os.cpu_count()} cores; {note}"
        figures.spread("reference look, wall", [took for took, _ in looks], "ms", None, note)
        figures.add("  the quickest of them", min(took for took, _ in looks), "ms")
    figures.add("reference look, answer", len(raw) / 1000, "kB", 40.0, steady=True)
