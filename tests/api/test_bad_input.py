"""Bad input is refused with a 4xx that names the path, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.api_stage import Api, host, spec

pytestmark = pytest.mark.main_job

PREFILL = {
    "prefill": {"placement": {"host": "gpu-a", "gpus": [0, 1]}, "port": 30010, "bootstrapPort": 8998},
    "decode": {"placement": {"host": "gpu-a", "gpus": [2, 3]}, "port": 30011},
    "router": {"placement": {"host": "gpu-a"}, "port": 30012},
}


def pd(name: str = "pd", **roles: Any) -> dict[str, Any]:
    """A spec with the three roles, some of them changed."""
    made = spec(name, roles={role: value | roles.get(role, {}) for role, value in PREFILL.items()})
    del made["spec"]["placement"], made["spec"]["port"]
    return made


def edited(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value set; `path` is dotted."""
    made = copy.deepcopy(document)
    node = made
    *parents, last = path.split(".")
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value
    return made


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (edited(spec(), "spec.colour", "red"), "spec.colour"),
    "unknown key deep": (edited(spec(), "spec.model.paths", "x"), "spec.model.paths"),
    "unknown key in metadata": (edited(spec(), "metadata.namespace", "x"), "metadata.namespace"),
    "unknown key at the top": (edited(spec(), "extra", 1), "extra"),
    "snake case": (edited(spec(), "spec.model.served_name", "x"), "spec.model.served_name"),
    "text for a number": (edited(spec(), "spec.port", "30001"), "spec.port"),
    "number for text": (edited(spec(), "spec.env", {"A": 1}), "spec.env.A"),
    "number with a fraction": (edited(spec(), "spec.parallelism.tensor", 2.0), "spec.parallelism.tensor"),
    "true for a number": (edited(spec(), "spec.parallelism.tensor", True), "spec.parallelism.tensor"),
    "text for a boolean": (edited(spec(), "spec.run", "off"), "spec.run"),
    "list for an object": (edited(spec(), "spec.model", []), "spec.model"),
    "null for text": (edited(spec(), "spec.env", {"A": None}), "spec.env.A"),
    "no spec": ({"apiVersion": "stoker/v1", "kind": "ServingSpec", "metadata": {"name": "k26"}}, "spec"),
    "another version": (edited(spec(), "apiVersion", "v1"), "apiVersion"),
    "port 0": (edited(spec(), "spec.port", 0), "spec.port"),
    "GPU twice": (spec(placement={"host": "gpu-a", "gpus": [0, 0]}), "spec.placement.gpus[1]"),
    "GPU out of range": (spec(placement={"host": "gpu-a", "gpus": [0, 8]}), "spec.placement.gpus[1]"),
    "GPU negative": (spec(placement={"host": "gpu-a", "gpus": [-1, 0]}), "spec.placement.gpus[0]"),
    "GPU as text": (spec(placement={"host": "gpu-a", "gpus": [0, "1"]}), "spec.placement.gpus[1]"),
    "host does not exist": (spec(placement={"host": "gpu-z", "gpus": [0, 1]}), "spec.placement.host"),
    "port clash": (spec(placement={"host": "gpu-a", "gpus": [2, 3]}, port=31000), "spec.port"),
    "GPU clash": (spec(placement={"host": "gpu-a", "gpus": [5, 7]}), "spec.placement.gpus[1]"),
    "unit clash": (spec(unit="stoker-first.server.service"), "spec.unit"),
    "unit of the system": (spec(unit="ssh.service"), "spec.unit"),
    "unit that is protected": (spec(unit="node-exporter.service"), "spec.unit"),
    "the host's SSH port": (spec(port=22), "spec.port"),
    "roles on one GPU": (
        pd(decode={"placement": {"host": "gpu-a", "gpus": [1, 2]}}),
        "spec.roles.decode.placement.gpus[0]",
    ),
    "roles on one port": (pd(decode={"port": 30010}), "spec.roles.decode.port"),
    "bootstrap port clash": (pd(decode={"port": 8998}), "spec.roles.decode.port"),
    "role without a place": (edited(pd(), "spec.roles.decode", {"port": 30011}), "spec.roles.decode.placement"),
    "unknown role": (edited(pd(), "spec.roles.encode", {}), "spec.roles.encode"),
    "control character": (edited(spec(), "spec.model.path", "/m\x1b[2J"), "spec.model.path"),
    "newline": (edited(spec(), "spec.args", {"x": "a\nExecStart=/bin/true"}), "spec.args.x"),
    "NUL": (edited(spec(), "spec.env", {"A": "a\0b"}), "spec.env.A"),
    "lone surrogate": (edited(spec(), "spec.env", {"A": "\ud800"}), "spec.env.A"),
    "hostile argument name": (edited(spec(), "spec.args", {"a b; rm -rf /": "1"}), 'spec.args["a b; rm -rf /"]'),
    "hostile variable name": (edited(spec(), "spec.env", {"A=B": "1"}), 'spec.env["A=B"]'),
    "path with dots": (edited(spec(), "spec.engine.python", "/opt/../bin/sh"), "spec.engine.python"),
    "label's value": (edited(spec(), "metadata.labels", {"rack": "a b"}), "metadata.labels.rack"),
    "label's key": (edited(spec(), "metadata.labels", {"a/b/c": "x"}), 'metadata.labels["a/b/c"]'),
    "label as number": (edited(spec(), "metadata.labels", {"rack": 1}), "metadata.labels.rack"),
    "two hosts, one machine": (host("gpu-b", ssh={"address": "192.0.2.50"}), "spec.ssh.address"),
    "host without a road": (edited(host("gpu-b"), "spec.ssh", None), "spec"),
    "jump does not exist": (host("gpu-b", ssh={"address": "192.0.2.9", "jump": "gpu-z"}), "spec.ssh.jump"),
    "jump through itself": (host("gpu-b", ssh={"address": "192.0.2.9", "jump": "gpu-b"}), "spec.ssh.jump"),
    "jump cycle": (host("gpu-a", ssh={"address": "192.0.2.50", "jump": "gpu-j"}, gpus={"count": 8}), "spec.ssh.jump"),
    "fewer GPUs than are used": (host("gpu-a", ssh={"address": "192.0.2.50"}, gpus={"count": 7}), "spec.gpus.count"),
    "address with a command": (host("gpu-b", ssh={"address": "a;reboot"}), "spec.ssh.address"),
    "address as an option": (host("gpu-b", ssh={"address": "-oProxyCommand=x"}), "spec.ssh.address"),
}


@pytest.fixture
async def peopled(api: Api) -> Api:
    """One host that is a jump's target, and one spec that takes GPUs 6 and 7 and port 31000."""
    first = host("gpu-a", ssh={"address": "192.0.2.50"}, protect=[{"unit": "node-exporter.service"}])
    jump = host("gpu-j", ssh={"address": "192.0.2.51", "jump": "gpu-a"})
    taken = spec("first", placement={"host": "gpu-a", "gpus": [6, 7]}, port=31000)
    for document in (first, jump, taken):
        assert (await api.put(document)).status_code == 201
    api.hands.poked.clear()
    return api


async def refused(api: Api, send: Callable[[], Any], *paths: str, status: int | None = None) -> dict[str, Any]:
    """Send, and see a problem that names each path, an unchanged store, and no host woken."""
    before = await api.contents()
    answer = await send()
    assert 400 <= answer.status_code < 500, answer.text
    assert status in (None, answer.status_code)
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert {item["path"] for item in body.get("errors", [])} >= set(paths), body
    assert await api.contents() == before
    assert api.hands.poked == []
    return body


@pytest.mark.parametrize("case", CASES)
async def test_bad_manifest_is_refused_by_path(peopled: Api, case: str) -> None:
    document, path = CASES[case]
    plural = "hosts" if document["kind"] == "Host" else "servingspecs"
    address = f"/api/v1/{plural}/{document['metadata']['name']}"
    text = json.dumps(document)
    send = lambda: peopled.http.put(address, content=text, headers={"Content-Type": "application/json"})  # noqa: E731
    await refused(peopled, send, path, status=422)


YAML = """\
apiVersion: stoker/v1
kind: ServingSpec
metadata: {{name: k26}}
spec:
  engine: {{name: sglang, python: /opt/venv/bin/python}}
  model: {{path: /models/m}}
  placement: {{host: gpu-a, gpus: [0]}}
  port: 30001
  env: {{A: {value}}}
"""


def put_yaml(api: Api, text: str) -> Callable[[], Any]:
    headers = {"Content-Type": "application/yaml"}
    return lambda: api.http.put("/api/v1/servingspecs/k26", content=text.encode(), headers=headers)


@pytest.mark.parametrize(
    "value",
    [
        "off",
        "on",
        "yes",
        "no",
        "y",
        "n",
        "Off",
        "TRUE",
        "012",
        "0o12",
        "0x1f",
        "1:30",
        "1:30:05",
        "1_000",
        "1e5",
        "+1",
        ".5",
        "1.",
        ".inf",
        ".nan",
        "2026-01-02",
        "null",
        "~",
        "Null",
    ],
)
async def test_ambiguous_yaml_is_refused_with_the_hint_to_quote(peopled: Api, value: str) -> None:
    body = await refused(peopled, put_yaml(peopled, YAML.format(value=value)), "spec.env.A", status=422)
    assert "quote" in body["errors"][0]["hint"]
    assert (await put_yaml(peopled, YAML.format(value=f'"{value}"'))()).status_code == 201


async def test_plain_number_in_env_is_refused_with_the_hint_to_quote(peopled: Api) -> None:
    body = await refused(peopled, put_yaml(peopled, YAML.format(value="1")), "spec.env.A")
    assert "quote" in body["errors"][0]["hint"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (YAML.format(value="a") + "  port: 30002\n", "spec.port"),
        (YAML.format(value="a") + "spec: {}\n", "spec"),
        (YAML.format(value="!!python/object/apply:os.system [touch /tmp/pwned]"), "spec.env.A"),
        (YAML.format(value="!secret x"), "spec.env.A"),
        (YAML.format(value="*nothing"), "spec.env.A"),
        (YAML.format(value="a") + "  args: {<<: {a: b}}\n", 'spec.args["<<"]'),
        (YAML.format(value="a") + "  args: {on: b}\n", "spec.args.on"),
        (YAML.format(value="a") + f"  args: {{a: {'[' * 60}{']' * 60}}}\n", "spec.args.a" + "[0]" * 29),
    ],
)
async def test_yaml_beyond_plain_data_is_refused(peopled: Api, text: str, path: str) -> None:
    await refused(peopled, put_yaml(peopled, text), path)
    assert not Path("/tmp/pwned").exists()


async def test_alias_bomb_is_refused_at_once(peopled: Api) -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    rows += [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]" for i in range(12)]
    await refused(peopled, put_yaml(peopled, "\n".join(rows)), "d[2]")
    wide = ["a: &a [" + "x, " * 900 + "x]"] + [f"k{i}: *a" for i in range(15)]
    await refused(peopled, put_yaml(peopled, "\n".join(wide)), "k10")


async def test_few_aliases_are_allowed(peopled: Api) -> None:
    text = YAML.format(value="&same text") + "  args: {a: *same}\n"
    assert (await put_yaml(peopled, text)()).json()["spec"]["args"] == {"a": "text"}


async def test_duplicate_key_in_json_is_refused(peopled: Api) -> None:
    text = json.dumps(spec()).replace('"port": 30001', '"port": 30001, "port": 30002')
    headers = {"Content-Type": "application/json"}
    await refused(
        peopled, lambda: peopled.http.put("/api/v1/servingspecs/k26", content=text, headers=headers), "spec.port"
    )


@pytest.mark.parametrize("text", ["{", "", "[1]", "NaN", '{"a": NaN}', "[" * 100_000, '"x"', "\ufeff", "1e999"])
async def test_broken_json_is_refused(peopled: Api, text: str) -> None:
    headers = {"Content-Type": "application/json"}
    await refused(peopled, lambda: peopled.http.put("/api/v1/servingspecs/k26", content=text, headers=headers))


async def test_name_of_a_mebibyte_is_refused(peopled: Api) -> None:
    send = lambda: peopled.http.put("/api/v1/servingspecs/k26", json=spec("x" * 2**20))  # noqa: E731
    body = await refused(peopled, send, "metadata.name")
    assert len(json.dumps(body)) < 2000
    body = await refused(peopled, lambda: peopled.put(spec("x" * 60_000)), "metadata.name")
    assert len(json.dumps(body)) < 2000


async def test_key_of_a_mebibyte_is_not_echoed(peopled: Api) -> None:
    body = await refused(peopled, lambda: peopled.put(edited(spec(), "spec." + "x" * 2**20, 1)))
    assert len(json.dumps(body)) < 2000


async def test_body_beyond_the_limit_is_413(peopled: Api) -> None:
    await refused(peopled, lambda: peopled.put(edited(spec(), "spec.env", {"A": "x" * 2**22})), status=413)

    async def chunks() -> Any:
        for _ in range(64):
            yield b" " * 2**16

    headers = {"Content-Type": "application/json"}
    send = lambda: peopled.http.put("/api/v1/hosts/gpu-b", content=chunks(), headers=headers)  # noqa: E731
    await refused(peopled, send, status=413)


async def test_names_in_address_and_body_must_agree(peopled: Api) -> None:
    await refused(peopled, lambda: peopled.http.put("/api/v1/servingspecs/other", json=spec()), "metadata.name")
    await refused(peopled, lambda: peopled.http.put("/api/v1/hosts/k26", json=spec()), "kind")


async def test_unknown_media_type_is_415(peopled: Api) -> None:
    for media in ("text/plain", "", "application/xml"):
        send = lambda media=media: peopled.http.put(  # noqa: E731
            "/api/v1/servingspecs/k26", content=json.dumps(spec()), headers={"Content-Type": media}
        )
        await refused(peopled, send, status=415)


HOSTILE = [
    "$(touch {f})",
    "`touch {f}`",
    "; touch {f} #",
    "' ; touch {f} '",
    '"; touch {f}; "',
    "| touch {f}",
    "%n%%i${IFS}",
    "\\",
]


def texts(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all texts in a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from texts(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from texts(value, (*path, index))
    elif isinstance(node, str):
        yield path


FULL_HOST = host(
    "gpu-m",
    ssh={"address": "192.0.2.77", "user": "root", "hostKey": "ssh-ed25519 AAAA", "jump": "gpu-a"},
    gpus={"count": 8, "product": "NVIDIA H200"},
    protect=[{"unit": "a.service"}, {"user": "u"}, {"command": "c"}],
    mode="observe",
    period="10s",
    strays={"limit": "report"},
)
FULL_SPEC = spec(
    "full",
    unit="x.service",
    user="serve",
    workingDirectory="/srv",
    model={"path": "/m", "servedName": "m"},
    speculative={"algorithm": "EAGLE", "draftModel": "/d"},
    args={"a": "b", "c": ["d"]},
    env={"A": "b"},
    listen="127.0.0.1",
    startup={"noProgress": "1m", "timeout": "2m"},
    rollback="never",
)


@pytest.mark.parametrize("template", HOSTILE)
async def test_shell_metacharacters_are_data_or_refused_by_path(peopled: Api, tmp_path: Path, template: str) -> None:
    hostile = template.replace("{f}", str(tmp_path / "pwned"))
    for document in (FULL_HOST, FULL_SPEC):
        for path in texts(document):
            made = copy.deepcopy(document)
            node = made
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = hostile
            await accepted_as_data_or_refused(peopled, document, made, path, hostile)
    assert not (tmp_path / "pwned").exists()


async def accepted_as_data_or_refused(api: Api, kept: Any, made: Any, path: tuple[Any, ...], hostile: str) -> None:
    plural = "hosts" if kept["kind"] == "Host" else "servingspecs"
    before = await api.contents()
    answer = await api.http.put(f"/api/v1/{plural}/{kept['metadata']['name']}", json=made)
    if answer.status_code >= 400:
        assert answer.status_code == 422, answer.text
        assert str(path[0]) in answer.json()["errors"][0]["path"]
        assert await api.contents() == before
        return
    node = (await api.http.get(f"/api/v1/{plural}/{kept['metadata']['name']}")).json()
    for part in path:
        node = node[part]
    assert node == hostile


async def test_two_at_once_do_not_both_get_the_card(peopled: Api) -> None:
    card = {"placement": {"host": "gpu-a", "gpus": [3]}, "parallelism": {"tensor": 1}}
    sent = [spec("one", port=1001, **card), spec("two", port=1002, **card)]
    answers = await asyncio.gather(*map(peopled.put, sent))
    assert sorted(answer.status_code for answer in answers) == [201, 422]


async def test_stopped_spec_may_share_a_card(peopled: Api) -> None:
    made = spec("variant", placement={"host": "gpu-a", "gpus": [6, 7]}, port=31000, run=False)
    assert (await peopled.put(made)).status_code == 201
    await_start = edited(made, "spec.run", True)
    answer = await peopled.put(await_start)
    assert {item["path"] for item in answer.json()["errors"]} == {
        "spec.placement.gpus[0]",
        "spec.placement.gpus[1]",
        "spec.port",
    }
