"""What the API does with good input: stores it with its defaults, shows it, lists it, deletes it, keeps its history."""

from __future__ import annotations

from typing import Any

from daemon.domain.status import Condition, Reason
from daemon.store import StoredInstance
from tests.api.api_stage import NOW, TOKEN, Api, host, spec


async def settled(api: Api) -> None:
    """A host and a spec on it."""
    assert (await api.put(host())).status_code == 201
    assert (await api.put(spec())).status_code == 201
    api.hands.poked.clear()


async def test_new_host_is_in_observe_and_defaults_are_stored(api: Api) -> None:
    answer = await api.put(host())
    assert answer.status_code == 201
    assert answer.headers["stoker-outcome"] == "created"
    stored = (await api.store.get("Host", "gpu-a")).spec
    assert stored["mode"] == "observe"
    assert stored["ssh"]["port"] == 22
    assert answer.json()["spec"] == stored
    assert api.hands.poked == ["gpu-a"]


async def test_identical_put_changes_nothing(api: Api) -> None:
    await settled(api)
    before = await api.contents()
    answer = await api.put(spec())
    assert (answer.status_code, answer.headers["stoker-outcome"]) == (200, "unchanged")
    assert await api.contents() == before


async def test_the_same_manifest_changes_nothing_that_a_version_without_a_newer_key_stored(api: Api) -> None:
    await settled(api)
    kept = (await api.store.get("Host", "gpu-a")).spec
    older = {**kept, "strays": {key: value for key, value in kept["strays"].items() if key != "budget"}}
    await api.store.put("Host", "gpu-a", older, {}, actor="t", now=NOW)
    before = await api.contents()
    answer = await api.put(host())
    assert (answer.status_code, answer.headers["stoker-outcome"]) == (200, "unchanged")
    assert await api.contents() == before
    assert (await api.put(host(strays={"budget": 8}))).headers["stoker-outcome"] == "configured"


async def test_label_alone_keeps_the_generation(api: Api) -> None:
    await settled(api)
    labelled = spec()
    labelled["metadata"]["labels"] = {"tier": "gold", "example.org/team": "chat"}
    answer = (await api.put(labelled)).json()
    assert answer["metadata"]["generation"] == 1
    assert answer["metadata"]["labels"] == labelled["metadata"]["labels"]


async def test_moved_spec_wakes_both_hosts(api: Api) -> None:
    await settled(api)
    await api.put(host("gpu-b"))
    api.hands.poked.clear()
    await api.put(spec(placement={"host": "gpu-b", "gpus": [0, 1]}))
    assert sorted(api.hands.poked) == ["gpu-a", "gpu-b"]


async def test_what_get_gives_can_be_put_until_it_is_stale(api: Api) -> None:
    await settled(api)
    read = (await api.http.get("/api/v1/servingspecs/k26")).json()
    assert (await api.put(read)).headers["stoker-outcome"] == "unchanged"
    changed = spec(contextLength=4096)
    assert (await api.put(changed)).status_code == 200
    stale = await api.put(read)
    assert stale.status_code == 409
    assert "resourceVersion" in stale.json()["detail"]


async def test_status_and_conditions_are_shown(api: Api) -> None:
    await settled(api)
    item = await api.store.get("ServingSpec", "k26")
    said = [Condition("Ready", "False", Reason.STARTING, "loading", 1)]
    status = {"observedGeneration": 1, "drift": [{"field": "argv"}]}
    await api.store.put_status("ServingSpec", item.uid, status, said, item.created_at)
    for shown in (
        (await api.http.get("/api/v1/servingspecs/k26")).json(),
        (await api.http.get("/api/v1/servingspecs")).json()["items"][0],
    ):
        assert shown["status"]["observedGeneration"] == 1
        assert shown["status"]["conditions"][0]["reason"] == "Starting"
        assert shown["metadata"]["uid"] == item.uid


async def test_list_selects_by_label(api: Api) -> None:
    for name, rack in (("gpu-a", "r1"), ("gpu-b", "r2")):
        made = host(name)
        made["metadata"]["labels"] = {"rack": rack, "tier": "gold"}
        await api.put(made)

    async def names(selector: str) -> Any:
        answer = await api.http.get("/api/v1/hosts", params={"labelSelector": selector})
        return (
            [item["metadata"]["name"] for item in answer.json()["items"]] if answer.is_success else answer.status_code
        )

    assert await names("rack=r2") == ["gpu-b"]
    assert await names("tier==gold, rack=r1") == ["gpu-a"]
    assert await names("rack=r3") == []
    assert await names("rack!=r1") == 400
    assert await names("rack") == 400


async def test_deleted_spec_terminates_and_its_history_stays(api: Api) -> None:
    await settled(api)
    await api.put(spec(contextLength=4096))
    answer = await api.http.delete("/api/v1/servingspecs/k26")
    assert answer.status_code == 202
    assert answer.json()["metadata"]["deletionTimestamp"]
    assert (await api.put(spec())).status_code == 409
    assert (await api.http.delete("/api/v1/servingspecs/k26")).status_code == 202
    uid = answer.json()["metadata"]["uid"]
    await api.store.finish_delete("ServingSpec", uid, now=(await api.store.get("ServingSpec", "k26")).updated_at)
    assert (await api.http.get("/api/v1/servingspecs/k26")).status_code == 404
    history = (await api.http.get("/api/v1/servingspecs/k26/history")).json()
    assert [item["generation"] for item in history["revisions"]] == [1, 2]
    assert history["revisions"][0]["actor"] == "ada@console"
    assert history["deletions"][0]["abandoned"] is False


async def test_abandoned_spec_is_gone_and_what_it_left_is_listed(api: Api) -> None:
    await settled(api)
    uid = (await api.store.get("ServingSpec", "k26")).uid
    unit = "stoker-k26.server.service"
    await api.store.put_instance(StoredInstance(uid, "server", "gpu-a", unit, f"/etc/systemd/system/{unit}"))
    answer = await api.http.delete("/api/v1/servingspecs/k26", params={"abandon": "true"})
    assert answer.json()["left"] == [
        {"host": "gpu-a", "unit": unit, "role": "server", "path": f"/etc/systemd/system/{unit}"}
    ]
    assert (await api.http.get("/api/v1/servingspecs/k26")).status_code == 404
    [stone] = await api.store.tombstones()
    assert stone.abandoned
    assert stone.units == (unit,)


async def test_host_with_a_spec_on_it_is_not_forgotten(api: Api) -> None:
    await settled(api)
    answer = await api.http.delete("/api/v1/hosts/gpu-a")
    assert answer.status_code == 409
    assert "k26" in answer.json()["detail"]
    await api.http.delete("/api/v1/servingspecs/k26", params={"abandon": "true"})
    assert (await api.http.delete("/api/v1/hosts/gpu-a")).status_code == 204
    assert (await api.http.get("/api/v1/hosts/gpu-a")).status_code == 404


async def test_new_owner_may_claim_the_card_of_a_terminating_spec_but_not_its_unit(api: Api) -> None:
    await settled(api)
    await api.http.delete("/api/v1/servingspecs/k26")
    thief = await api.put(spec("thief", unit="stoker-k26.server.service"))
    assert [item["path"] for item in thief.json()["errors"]] == ["spec.unit"]
    assert (await api.put(spec("heir"))).status_code == 201


async def test_pause_says_by_whom(api: Api) -> None:
    await settled(api)
    assert (await api.http.get("/api/v1/pause")).json() == {"paused": False}
    paused = (await api.http.put("/api/v1/pause")).json()
    assert (paused["paused"], paused["by"]) == (True, "ada@console")
    assert api.hands.poked == ["gpu-a"]
    assert (await api.http.delete("/api/v1/pause")).json() == {"paused": False}


async def test_events_are_newest_first_or_after_an_id(api: Api) -> None:
    await settled(api)
    all_ = (await api.http.get("/api/v1/events")).json()["items"]
    assert [item["name"] for item in all_] == ["k26", "gpu-a"]
    only = (await api.http.get("/api/v1/events", params={"kind": "Host", "name": "gpu-a"})).json()["items"]
    assert [item["name"] for item in only] == ["gpu-a"]
    later = (await api.http.get("/api/v1/events", params={"after": only[0]["id"]})).json()["items"]
    assert [item["name"] for item in later] == ["k26"]
    for bad in ({"limit": 0}, {"limit": "x"}, {"kind": "Pod"}, {"after": 2**70}):
        answer = await api.http.get("/api/v1/events", params=bad)
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"].startswith("query.")


async def test_doctor_and_takeover_reach_the_controller(api: Api) -> None:
    await settled(api)
    checks = (await api.http.post("/api/v1/hosts/gpu-a/doctor")).json()["checks"]
    assert checks[0]["name"] == "sudo"
    assert (await api.http.post("/api/v1/hosts/gpu-a/takeover")).status_code == 200
    assert api.hands.taken_by == "ada@console"
    assert (await api.http.post("/api/v1/hosts/nobody/doctor")).status_code == 404


async def test_everything_but_the_probes_needs_the_token(api: Api) -> None:
    paths = ["/metrics", "/openapi.json", "/api/v1/hosts", "/api/v1/version", "/nothing", "//livez", "/livez/"]
    for header in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"):
        for path in paths:
            answer = await api.http.get(path, headers={"Authorization": header.encode("latin-1")})
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/livez", "/readyz"):
            assert (await api.http.get(path, headers={"Authorization": header.encode("latin-1")})).status_code == 200
    refused = await api.http.put("/api/v1/hosts/gpu-a", json=host(), headers={"Authorization": "Bearer x"})
    assert refused.status_code == 401
    assert await api.store.list("Host") == ()


async def test_readyz_follows_the_controller(api: Api) -> None:
    api.hands.is_ready = False
    assert (await api.http.get("/readyz")).status_code == 503
    assert (await api.http.get("/livez")).status_code == 200


async def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("POST", "/api/v1/hosts", 405)):
        answer = await api.http.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert answer.json()["hint"]


async def test_openapi_names_the_bodies(api: Api) -> None:
    schema = (await api.http.get("/openapi.json")).json()
    body = schema["paths"]["/api/v1/servingspecs/{name}"]["put"]["requestBody"]["content"]["application/yaml"]
    assert body["schema"]["$ref"].rsplit("/", 1)[-1] in schema["components"]["schemas"]
    assert "noProgress" in schema["components"]["schemas"]["Startup"]["properties"]


async def test_metrics_are_prometheus_text(api: Api) -> None:
    answer = await api.http.get("/metrics")
    assert answer.text == "stoker_up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=")


async def test_warnings_come_with_the_answer_and_are_not_stored(api: Api) -> None:
    await api.put(host())
    answer = await api.put(spec(env={"HF_TOKEN": "hf_x"}))
    assert answer.status_code == 201
    assert [item["path"] for item in answer.json()["warnings"]] == ["spec.env.HF_TOKEN"]
    assert "warnings" not in (await api.http.get("/api/v1/servingspecs/k26")).json()
