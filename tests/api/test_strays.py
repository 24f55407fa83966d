"""Who holds what, over the API: every process with its proof, and what a person's word to clear some is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, ProcessId, Unknown
from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.planner.plan import decide
from daemon.planner.world import World
from tests.api.api_stage import NOW, Api, host
from tests.planner.box import BOOT, UUIDS, Box, Proc
from tests.planner.driving import HOST, Driver, spec

MARKS = (("STOKER_SPEC", "uid-n"), ("STOKER_STORE", "store-uid"))
CLEAR = "/api/v1/hosts/gpu-a/strays/clear"

pytestmark = pytest.mark.strays


class Scene:
    """One host under `report`, with a process of each kind; `remember` is what a pass leaves."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.driver = Driver(Box(), {"m": spec(), "n": spec("n", (2, 3), 30002, run=False)})
        for _ in range(8):
            self.driver.turn()
        told = {**HOST.model_dump(), "strays": {"limit": "report"}, "protect": [{"command": "guard"}]}
        self.driver.host = HostSpec.model_validate(told)
        box = self.driver.box
        self.managed = next(proc for proc in box.procs.values() if proc.cgroup.endswith("stoker-m.server.service"))
        self.orphan = box.spawn(("sglang::scheduler_TP0",), "/stray", gpus={UUIDS[3]: 9000}, marks=MARKS)
        self.foreign = box.spawn(
            ("python3", "train.py", "--api-key", "s3cr3tValue99"), "/system.slice/t.service", gpus={UUIDS[0]: 4000}
        )
        self.unknown = box.spawn(("python3",), "/stray", gpus={UUIDS[2]: 10}, marks=None)
        self.guard = box.spawn(("guard", "x"), "/stray", gpus={UUIDS[2]: 10}, marks=MARKS)
        self.driver.turn()

    def remember(self, **change: Any) -> HostMemory:
        world = replace(self.driver.world(), name="gpu-a", **change)
        plan = decide(world)
        memory = HostMemory(boot_id=BOOT, look=world.observation, world=world, plan=plan)
        memory.strays = dict(world.strays)
        self.api.hands.memories["gpu-a"] = memory
        self.api.hands.now_s = world.now_s + 3
        return memory

    async def items(self, **query: str) -> dict[int, dict[str, Any]]:
        answer = (await self.api.http.get("/api/v1/hosts/gpu-a/strays", params=query)).json()
        return {its["pid"]: its for its in answer["items"]}

    async def clear(self, *procs: Proc, boot: str = BOOT, later: int = 0) -> Any:
        listed = [{"pid": proc.pid, "startTicks": proc.start + later} for proc in procs]
        return await self.api.http.post(CLEAR, json={"bootId": boot, "processes": listed})

    async def told(self) -> list[str]:
        return [f"{its.action} {its.result} {its.reason}: {its.message}" for its in await self.api.store.events()]


@pytest.fixture
async def scene(api: Api) -> Scene:
    await api.put(host())
    return Scene(api)


async def test_each_is_listed_with_its_proof_and_what_is_done(scene: Scene) -> None:
    scene.remember()
    found = await scene.items()
    assert [its["owner"] for its in found.values()] == ["orphan-proven", "orphan-proven", "unknown", "foreign"]
    orphan, foreign = found[scene.orphan.pid], found[scene.foreign.pid]
    assert (orphan["verdict"], orphan["proof"]) == ("ReportOnly", "carries our mark and its unit is not live")
    assert orphan["gpus"] == [{"index": 3, "uuid": UUIDS[3], "memoryMib": 9000}]
    assert orphan["startTicks"] == scene.orphan.start
    assert orphan["parent"] == {"pid": 1, "command": None}
    assert orphan["unit"] == "stoker-n.server.service"
    assert foreign["detail"] == "left alone; in the way of spec m"
    assert foreign["command"] == "python3 train.py --api-key [redacted]"
    assert found[scene.unknown.pid]["proof"] == "its environment could not be read"
    assert found[scene.guard.pid]["verdict"] == "Protected"


async def test_managed_processes_are_listed_when_asked_for(scene: Scene) -> None:
    scene.remember()
    assert scene.managed.pid not in await scene.items()
    found = (await scene.items(all="true"))[scene.managed.pid]
    assert (found["owner"], found["verdict"], found["ports"]) == ("managed", "Managed", [30001])


async def test_ages_are_times_of_the_day(scene: Scene) -> None:
    memory = scene.remember()
    world = memory.world
    assert isinstance(world, World)
    assert isinstance(world.observation, Observation)
    identity = replace(world.observation.identity, uptime_s=scene.orphan.start / 100 + 60)
    memory.world = replace(world, observation=replace(world.observation, identity=identity))
    found = (await scene.items())[scene.orphan.pid]
    assert found["startedAt"] == (NOW - timedelta(seconds=63)).isoformat()
    first_s = memory.strays[ProcessId(scene.orphan.pid, scene.orphan.start)].first_seen_s
    assert found["firstSeenAt"] == (NOW - timedelta(seconds=scene.api.hands.now_s - first_s)).isoformat(
        timespec="seconds"
    )


async def test_of_one_that_the_newest_look_did_not_show_the_times_are_null_and_not_left_out(scene: Scene) -> None:
    """The list is of the plan, what is remembered of the look after it; who reads the list asks for each key."""
    memory = scene.remember()
    memory.strays.clear()
    found = (await scene.items())[scene.orphan.pid]
    assert [found[key] for key in ("firstSeenAt", "termAt", "killAt")] == [None] * 3


@pytest.mark.parametrize("ticks", [10**15, 10**18])
async def test_a_start_that_no_calendar_holds_is_no_reason_to_list_nothing(scene: Scene, ticks: int) -> None:
    scene.orphan.start = ticks
    scene.driver.turn()
    scene.remember()
    found = await scene.items()
    assert found[scene.orphan.pid]["startTicks"] == ticks
    assert found[scene.orphan.pid]["startedAt"] is None
    assert found[scene.foreign.pid]["startedAt"] is not None


@pytest.mark.parametrize("section", ["processes", "listeners", "units"])
async def test_what_is_not_known_is_not_an_empty_list(scene: Scene, section: str) -> None:
    look = scene.driver.world().observation
    scene.remember(observation=replace(look, **{section: Unknown(Reason.TRUNCATED, "cut")}))  # type: ignore[type-var]
    answer = (await scene.api.http.get("/api/v1/hosts/gpu-a/strays")).json()
    assert answer["items"] is None
    assert answer["unseen"] is None
    assert {"what": "holders", "reason": "Truncated", "detail": "cut"} in answer["unknown"]


async def test_missing_gpu_processes_are_named_beside_what_is_known(scene: Scene) -> None:
    look = scene.driver.world().observation
    scene.remember(observation=replace(look, apps=Unknown(Reason.TOOL_TIMED_OUT, "nvidia-smi")))  # type: ignore[type-var]
    answer = (await scene.api.http.get("/api/v1/hosts/gpu-a/strays?all=true")).json()
    assert [its["pid"] for its in answer["items"]] == [scene.managed.pid]
    assert answer["unknown"] == [{"what": "gpuProcesses", "reason": "ToolTimedOut", "detail": "nvidia-smi"}]
    assert answer["unseen"] is None
    assert (await scene.clear(scene.orphan)).status_code == 409


async def test_a_host_that_was_not_looked_at_or_cannot_be_says_so(scene: Scene) -> None:
    answer = (await scene.api.http.get("/api/v1/hosts/gpu-a/strays")).json()
    assert (answer["items"], answer["gpus"], answer["unknown"][0]["reason"]) == (None, None, "NotObservedYet")
    scene.remember(observation=Unknown(Reason.CONNECT_TIMEOUT, "no answer"))
    answer = (await scene.api.http.get("/api/v1/hosts/gpu-a/strays")).json()
    assert (answer["items"], answer["unknown"][0]["reason"]) == (None, "ConnectTimeout")
    assert (await scene.api.http.get("/api/v1/hosts/nowhere/strays")).status_code == 404


async def test_an_orphan_under_report_is_taken_on_by_a_persons_word(scene: Scene) -> None:
    memory = scene.remember()
    scene.api.hands.poked.clear()
    answer = await scene.clear(scene.orphan)
    listed = {"pid": scene.orphan.pid, "startTicks": scene.orphan.start}
    assert (answer.status_code, answer.json()) == (202, {"host": "gpu-a", "accepted": [listed], "refused": []})
    assert {identity.pid: asked.by for identity, asked in memory.asked.items()} == {scene.orphan.pid: "ada@console"}
    assert scene.api.hands.poked == ["gpu-a"]
    assert f"ask-clear ok Clearing: ada@console asked to clear pid {scene.orphan.pid} on gpu-a: accepted" in (
        await scene.told()
    )
    assert (await scene.items())[scene.orphan.pid]["askedBy"] == "ada@console"


async def test_everything_else_is_refused_with_its_reason(scene: Scene) -> None:
    memory = scene.remember()
    answer = await scene.clear(scene.managed, scene.foreign, scene.unknown, scene.guard)
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    errors = {its["path"]: its["message"] for its in answer.json()["errors"]}
    for at, (proc, reason) in enumerate(
        [(scene.managed, "Managed"), (scene.foreign, "ForeignHolder"), (scene.unknown, "OwnershipUnknown"),
         (scene.guard, "Protected")]
    ):  # fmt: skip
        assert errors[f"processes[{at}]"].startswith(f"pid {proc.pid}: {reason}: ")
    assert "in the cgroup of live unit t.service" in errors["processes[1]"]
    assert memory.asked == {}
    assert any(said.startswith("ask-clear refused Managed: ada@console asked") for said in await scene.told())


async def test_of_several_the_good_ones_are_taken(scene: Scene) -> None:
    memory = scene.remember()
    answer = await scene.clear(scene.foreign, scene.orphan)
    assert answer.status_code == 202
    assert [its["pid"] for its in answer.json()["accepted"]] == [scene.orphan.pid]
    assert [(its["pid"], its["reason"]) for its in answer.json()["refused"]] == [(scene.foreign.pid, "ForeignHolder")]
    assert [identity.pid for identity in memory.asked] == [scene.orphan.pid]


async def test_a_pid_that_is_another_process_by_now_is_refused(scene: Scene) -> None:
    memory = scene.remember()
    for answer, told in (
        (await scene.clear(scene.orphan, later=-1), "that pid is another process by now"),
        (await scene.clear(Proc(4_000_000, 5, (), "/x")), "it is gone"),
        (await scene.clear(scene.orphan, boot="22222222-2222-3333-4444-555555555555"), "was booted since"),
    ):
        assert answer.status_code == 409
        assert told in answer.json()["detail"]
    assert memory.asked == {}


@pytest.mark.parametrize("why", [Reason.OBSERVE_ONLY, Reason.PAUSED, Reason.HELD, Reason.FENCED_OFF])
async def test_nothing_is_taken_on_while_nothing_may_be_changed(scene: Scene, why: Reason) -> None:
    memory = scene.remember(withheld=why)
    answer = await scene.clear(scene.orphan)
    assert answer.status_code == 409
    assert str(why) in answer.json()["detail"]
    assert ("`stoker takeover gpu-a`" in answer.json()["detail"]) == (why is Reason.FENCED_OFF)
    assert memory.asked == {}
    assert any("ask-clear refused" in said and str(why) in said for said in await scene.told())


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"bootId": BOOT, "processes": [{"pid": 5}]}, "processes[0].startTicks"),
        ({"bootId": BOOT, "processes": [{"pid": 1, "startTicks": 5}]}, "processes[0].pid"),
        ({"bootId": BOOT, "processes": [{"pid": "5", "startTicks": 5}]}, "processes[0].pid"),
        ({"bootId": BOOT, "processes": [{"pid": -5, "startTicks": 5}]}, "processes[0].pid"),
        ({"bootId": BOOT, "processes": [5]}, "processes[0]"),
        ({"bootId": BOOT, "processes": []}, "processes"),
        ({"bootId": BOOT, "processes": [{"pid": 5, "startTicks": 5}], "force": True}, "force"),
        ({"processes": [{"pid": 5, "startTicks": 5}]}, "bootId"),
        ({"bootId": "x; rm -rf /", "processes": [{"pid": 5, "startTicks": 5}]}, "bootId"),
        ([], ""),
    ],
)
async def test_a_request_without_identities_is_refused_by_its_path(scene: Scene, document: Any, path: str) -> None:
    memory = scene.remember()
    answer = await scene.api.http.post(CLEAR, json=document)
    assert answer.status_code == 422
    assert [its["path"] for its in answer.json()["errors"]] == [path]
    assert memory.asked == {}


async def test_the_list_and_the_request_are_in_the_schema(scene: Scene) -> None:
    schema = (await scene.api.http.get("/openapi.json")).json()
    body = schema["paths"]["/api/v1/hosts/{name}/strays/clear"]["post"]["requestBody"]["content"]["application/json"]
    named = schema["components"]["schemas"][body["schema"]["$ref"].rsplit("/", 1)[-1]]
    assert set(named["properties"]) == {"bootId", "processes"}
    assert json.dumps(named).count("examples") == 1
    assert "/api/v1/hosts/{name}/strays" in schema["paths"]
