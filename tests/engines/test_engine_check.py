"""What is refused before anything is stored, where it is said to be, and what is only warned of."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.engines.check import check, warnings
from daemon.engines.check_custom import container_client
from tests.engines.specs import CUSTOM, KIMI, PAIR, VLLM, spec_of


def refused(text: str, **changes: Any) -> dict[str, str]:
    """Path to message and hint of everything refused."""
    return {p.path: f"{p.message} ({p.hint})" for p in check(spec_of(text, **changes))}


def warned(text: str, **changes: Any) -> dict[str, str]:
    return {p.path: f"{p.message} ({p.hint})" for p in warnings(spec_of(text, **changes))}


def engine(name: str, version: str | None) -> dict[str, Any]:
    return {"name": name, "python": "/opt/venv/bin/python", **({"version": version} if version else {})}


@pytest.mark.parametrize("text", [KIMI, PAIR, VLLM, CUSTOM])
def test_good_specs_have_no_problem(text: str) -> None:
    assert refused(text) == {}
    assert warned(text) == {}


def eagle(**given: Any) -> dict[str, Any]:
    return {"speculative": {"algorithm": "EAGLE", "draftModel": "/d", **given}}


def test_eagle3_without_a_draft_model_is_refused() -> None:
    found = refused(KIMI, speculative={"algorithm": "EAGLE3"})
    assert "needs a draft model" in found["spec.speculative.draftModel"]
    assert refused(KIMI, speculative={"algorithm": "EAGLE3"}, args={"speculative-draft-model-path": "/d"}) == {}
    assert refused(KIMI, speculative={"algorithm": "NEXTN"}) == {}


def test_eagle_on_a_checkpoint_with_draft_weights_is_only_warned_of() -> None:
    model = {"path": "/models/DeepSeek-V3.2"}
    assert refused(KIMI, model=model, speculative={"algorithm": "EAGLE"}) == {}
    assert "spec.speculative.draftModel" in warned(KIMI, model=model, speculative={"algorithm": "EAGLE"})


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"numSteps": 3}, "eagleTopk"),
        ({"numSteps": 3, "eagleTopk": 4}, "numDraftTokens"),
        ({"eagleTopk": 4}, "numSteps"),
    ],
)
def test_one_or_two_of_the_three_numbers_are_refused(given: dict[str, int], missing: str) -> None:
    assert f"spec.speculative.{missing}" in refused(KIMI, **eagle(**given))


def test_all_three_or_none_are_allowed() -> None:
    assert refused(KIMI, **eagle(numSteps=3, eagleTopk=4, numDraftTokens=8)) == {}
    assert refused(KIMI, **eagle()) == {}
    assert "spec.speculative.numSteps" in warned(KIMI, **eagle())
    assert refused(KIMI, **eagle(numSteps=3, eagleTopk=4), args={"speculative-num-draft-tokens": 8}) == {}


def test_topk_one_that_the_engine_would_change_is_warned_of() -> None:
    assert (
        "write 4" in warned(KIMI, **eagle(numSteps=3, eagleTopk=1, numDraftTokens=8))["spec.speculative.numDraftTokens"]
    )


def dflash(**given: Any) -> dict[str, Any]:
    return {"speculative": {"algorithm": "DFLASH", "draftModel": "/d", **given}}


def test_two_values_for_one_dflash_block_are_refused() -> None:
    assert "spec.speculative.blockSize" in refused(KIMI, **dflash(blockSize=16, numDraftTokens=8))
    assert "spec.speculative.blockSize" in refused(
        KIMI, **dflash(blockSize=16), args={"speculative-num-draft-tokens": 8}
    )
    assert refused(KIMI, **dflash(blockSize=8, numDraftTokens=8)) == {}


def test_dflash_needs_a_draft_and_a_window_of_a_block() -> None:
    assert "spec.speculative.draftModel" in refused(KIMI, speculative={"algorithm": "DFLASH"})
    assert "spec.speculative.draftWindow" in refused(KIMI, **dflash(blockSize=16, draftWindow=8))
    assert "spec.speculative.eagleTopk" in warned(KIMI, **dflash(eagleTopk=4))


def test_vllm_block_is_one_more_than_its_tokens() -> None:
    speculative = {"algorithm": "dflash", "draftModel": "x-DFlash-b16", "numDraftTokens": 16}
    assert refused(VLLM, speculative=speculative) == {}
    assert "model cards use 15" in warned(VLLM, speculative=speculative)["spec.speculative"]
    written = {"speculative-config": '{"method":"dflash","model":"x-DFlash-b16","num_speculative_tokens":16}'}
    assert "spec.args.speculative-config" in warned(VLLM, speculative=None, args=written)
    assert "spec.args.speculative-config" in refused(VLLM, speculative=None, args={"speculative-config": "{"})


def test_vllm_refuses_settings_it_does_not_have() -> None:
    assert "spec.speculative.draftWindow" in refused(VLLM, speculative={"algorithm": "ngram", "draftWindow": 4})
    assert "mtp" in refused(VLLM, speculative={"algorithm": "NEXTN"})["spec.speculative"]


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({"parallelism": {"tensor": 4}}, False),
        ({"parallelism": {"tensor": 4, "pipeline": 2}}, True),
        ({"parallelism": {"tensor": 4, "data": 2}}, True),
        ({"parallelism": {"tensor": 8, "data": 2}}, False),
        ({"parallelism": {"tensor": 8, "data": 8}, "args": {"enable-dp-attention": True}}, True),
        ({"parallelism": {"tensor": 8, "data": 3}, "args": {"enable-dp-attention": True}}, False),
        ({"args": {"attn-dp-size": 8}}, True),
        ({"args": {"tp-size": 4}}, False),
        ({"args": {"tensor-parallel-size": 4, "nnodes": 2}}, True),
    ],
)
def test_parallel_sizes_use_the_placed_cards(changes: dict[str, Any], ok: bool) -> None:
    assert (refused(KIMI, speculative=None, **changes) == {}) is ok


def test_a_card_named_twice_is_refused_at_its_place() -> None:
    placement = {"host": "gpu-a", "gpus": [0, 1, 1]}
    assert "spec.placement.gpus[2]" in refused(VLLM, placement=placement, parallelism={"tensor": 3})


def test_underscores_are_refused_with_the_right_spelling() -> None:
    assert "write reasoning-parser" in refused(KIMI, args={"reasoning_parser": "kimi_k2"})["spec.args.reasoning_parser"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("reasoning-parsr", "reasoning-parser"),
        ("mem-frac", "mem-fraction-static"),
        ("cuda-graph-max-bs", "cuda-graph-max-bs-"),
    ],
)
def test_unknown_flags_are_refused_with_what_was_meant(name: str, meant: str) -> None:
    assert f"did you mean {meant}" in refused(KIMI, args={name: 1})[f"spec.args.{name}"]


@pytest.mark.parametrize("version", [None, "0.5.15", "0.5.23.post1"])
def test_unknown_flags_are_only_warned_of_when_the_version_is_not_known(version: str | None) -> None:
    changes: dict[str, Any] = {"engine": engine("sglang", version), "args": {"brand-new": 1}}
    assert refused(KIMI, **changes) == {}
    assert "spec.args.brand-new" in warned(KIMI, **changes)


def test_a_field_whose_flag_the_version_lacks_is_refused() -> None:
    found = refused(KIMI, engine=engine("sglang", "0.5.6"))
    assert "--speculative-draft-window-size" in found["spec.speculative.draftWindow"]


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"api-key": "x"}, "api-key"),
        ({"admin-api-key": "x"}, "admin-api-key"),
        ({"ssl-keyfile-password": "x"}, "ssl-keyfile-password"),
        ({"weight-version": "hf_abcdefghijklmnop"}, "weight-version"),
        ({"port": 1}, "port"),
        ({"served-model-name": "x"}, "served-model-name"),
        ({"model-path": "/x"}, "model-path"),
        ({"disable-radix-cache": False}, "disable-radix-cache"),
        ({"enable-metrics": "yes"}, "enable-metrics"),
        ({"page-size": True}, "page-size"),
        ({"page-size": ["1", "2"]}, "page-size"),
        ({"page-size": float("inf")}, "page-size"),
        ({"allowed-media-domains": ["a", "-b"]}, "allowed-media-domains"),
    ],
)
def test_args_that_cannot_be_right_are_refused(args: dict[str, Any], path: str) -> None:
    assert list(refused(KIMI, args=args)) == [f"spec.args.{path}"]


def test_vllm_secrets_and_dotted_flags() -> None:
    assert "spec.args.hf-token" in refused(VLLM, args={"hf-token": "x"})
    assert refused(VLLM, speculative=None, args={"speculative-config.num_speculative_tokens": 3}) == {}
    assert "spec.args.no-such.x" in refused(VLLM, args={"no-such.x": 3})


def test_a_choice_the_version_does_not_list_is_warned_of() -> None:
    assert refused(KIMI, args={"attention-backend": "cutlass_mla"}) == {}
    assert "spec.args.attention-backend" in warned(KIMI, args={"attention-backend": "cutlass_mla"})


def test_paths_lead_to_the_role_that_wrote_it() -> None:
    roles = {
        "prefill": {"placement": {"host": "a", "gpus": [0]}, "port": 1, "args": {"x_y": 1}},
        "decode": {"placement": {"host": "a", "gpus": [1, 1]}, "port": 2, "env": {"SPT_NOENV": "0"}},
    }
    found = refused(PAIR, roles=roles, args={"a_b": 1})
    assert set(found) == {
        "spec.roles.prefill.args.x_y",
        "spec.roles.decode.placement.gpus[1]",
        "spec.roles.decode.env.SPT_NOENV",
        "spec.args.a_b",
        "spec.parallelism",
    }
    assert len(check(spec_of(PAIR, roles=roles, args={"a_b": 1}))) == 5


def test_roles_belong_to_sglang() -> None:
    assert "spec.roles" in refused(PAIR, engine=engine("vllm", None), args=None)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SPT_NOENV", "STOKER_SPEC"])
def test_reserved_variables_are_refused(name: str) -> None:
    assert f"spec.env.{name}" in refused(KIMI, env={name: "1"})


def test_secrets_in_the_environment_are_warned_of() -> None:
    assert "spec.env.HF_TOKEN" in warned(KIMI, env={"HF_TOKEN": "hf_x"})


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"engine": {"name": "sglang", "python": "/opt/it's/python"}}, "spec.engine.python"),
        ({"engine": {"name": "sglang", "python": "/opt/./python"}}, "spec.engine.python"),
        ({"engine": {"name": "sglang", "python": "/opt/python/"}}, "spec.engine.python"),
        ({"stop": {"timeout": "0s"}}, "spec.stop.timeout"),
        ({"workingDirectory": "/srv/x\\"}, "spec.workingDirectory"),
        ({"model": {"path": "-x"}}, "spec.model.path"),
        ({"model": {"path": "/m", "servedName": "a:b"}}, "spec.model.servedName"),
        ({"env": {"A": "x\ufffe"}}, "spec.env.A"),
    ],
)
def test_what_systemd_or_the_engine_cannot_take_is_refused(changes: dict[str, Any], path: str) -> None:
    assert path in refused(KIMI, **changes)


@pytest.mark.parametrize(
    ("command", "client"),
    [
        ("/usr/bin/docker run x", "docker"),
        ("sudo -u root -E podman run x", "podman"),
        ("/usr/bin/env A=1 B=2 nerdctl run x", "nerdctl"),
        ("env -u X -i docker run", "docker"),
        ("/bin/sh -c|exec docker run x", "docker"),
        ("/bin/bash -lc|cd /srv && A=1 /usr/bin/docker run x", "docker"),
        ("sh -c|true;docker run", "docker"),
        ("sudo sh -ec|if true; then podman run x; fi", "podman"),
        ("timeout -k 5 10 docker run", "docker"),
        ("nice -n 5 ionice -c 2 docker run", "docker"),
        ("env -S|docker run x", "docker"),
        ("/bin/sh -c|bash -c 'docker run'", "docker"),
        ("/bin/busybox sh -c|docker run", "docker"),
        ("/usr/bin/systemd-run x", "systemd-run"),
        ("/opt/docker/bin/llama-server -m docker", None),
        ("/bin/sh -c|/opt/x --name docker", None),
        ("/bin/sh /opt/docker", None),
        ("/opt/llama-server", None),
        ("env", None),
        ("sudo", None),
        ("sh -c", None),
        ("/bin/sh -c|it's open", None),
    ],
)
def test_container_clients_are_found_behind_what_starts_them(command: str, client: str | None) -> None:
    head, bar, text = command.partition("|")
    assert container_client([*head.split(), *([text] if bar else [])]) == client


def test_custom_commands_are_judged() -> None:
    def custom(*command: str) -> dict[str, Any]:
        return {"engine": {"name": "custom", "command": list(command)}}

    assert "spec.engine.command" in refused(CUSTOM, **custom("/usr/bin/docker", "run"))
    assert "spec.engine.command[0]" in refused(CUSTOM, **custom("llama-server"))
    assert "spec.engine.command[0]" in refused(CUSTOM, **custom("/opt/../bin/x"))
    assert "spec.engine.command[1]" in refused(CUSTOM, **custom("/opt/x", "--api-key", "secret"))
    assert "spec.engine.command[1]" in refused(CUSTOM, **custom("/opt/x", "--api-key=secret"))
    assert refused(CUSTOM, **custom("/opt/x", "", "a\\b", "$HOME", "%h")) == {}
