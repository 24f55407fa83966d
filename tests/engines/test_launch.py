"""A spec as argv, environment and hash."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from daemon.engines.arguments import text_of
from daemon.engines.catalogue import flags_of
from daemon.engines.launch import Launch, Peer, argv_runs, launch_hash, render
from tests.engines.specs import CUSTOM, KIMI, PAIR, PEERS, VLLM, launched, spec_of


def after(argv: tuple[str, ...], flag: str) -> str:
    """The word that follows a flag which must stand there exactly once."""
    assert argv.count(flag) == 1, f"{flag} in {argv}"
    return argv[argv.index(flag) + 1]


def test_sglang_is_started_by_its_module() -> None:
    argv = launched(spec_of(KIMI)).argv
    assert argv[:3] == ("/opt/venv/bin/python", "-m", "sglang.launch_server")
    assert after(argv, "--model-path") == "/models/Kimi-K2.6"
    assert after(argv, "--mem-fraction-static") == "0.85"
    assert argv[-4:] == ("--page-size", "1", "--attention-backend", "triton")


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.23", "0.5.15", "0.4.0", "9.9", None])
def test_one_spec_is_one_argv_over_versions(version: str | None) -> None:
    engine = {"name": "sglang", "python": "/opt/venv/bin/python", **({"version": version} if version else {})}
    assert launched(spec_of(KIMI, engine=engine)).argv == launched(spec_of(KIMI)).argv


@pytest.mark.parametrize(
    ("args", "gone"),
    [
        ({"tensor-parallel-size": 4}, "--tp-size"),
        ({"tp-size": 4}, None),
        ({"model": "/other"}, "--model-path"),
        ({"mem_fraction_static": 0.5}, "--mem-fraction-static"),
        ({"speculative-draft-model": "/x"}, "--speculative-draft-model-path"),
    ],
)
def test_args_replace_what_is_rendered_in_any_spelling(args: dict[str, Any], gone: str | None) -> None:
    argv = launched(spec_of(KIMI, args=args)).argv
    assert gone not in argv
    name, value = next(iter(args.items()))
    assert after(argv, f"--{name}") == str(value)


def test_a_negative_flag_replaces_the_positive_one() -> None:
    model = {"path": "m", "trustRemoteCode": True}
    argv = launched(spec_of(VLLM, model=model, args={"no-trust-remote-code": True})).argv
    assert "--trust-remote-code" not in argv
    assert "--no-trust-remote-code" in argv


def test_values_of_args_become_words() -> None:
    args = {"a": True, "b": ["x", "y z"], "c": "-1", "d": 1.0, "e": 0.1, "f": "", "g": 7, "h": False}
    argv = launched(spec_of(KIMI, args=args)).argv
    assert argv[argv.index("--a") :] == (
        "--a",
        "--b",
        "x",
        "y z",
        "--c=-1",
        "--d",
        "1",
        "--e",
        "0.1",
        "--f",
        "",
        "--g",
        "7",
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0.9, "0.9"), (1.0, "1"), (1e-5, "1e-05"), (3, "3"), (0.1 + 0.2, "0.30000000000000004")]
)
def test_numbers_are_plain(value: float, text: str) -> None:
    assert text_of(value) == text


def test_vllm_is_started_as_the_kernel_starts_its_script() -> None:
    argv = launched(spec_of(VLLM)).argv
    assert argv[:4] == ("/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "Qwen/Qwen3-8B")
    config = after(argv, "--speculative-config")
    assert config == '{"method":"dflash","model":"z-lab/Qwen3-8B-DFlash-b16","num_speculative_tokens":15}'
    assert json.loads(config)["num_speculative_tokens"] == 15


def test_vllm_expert_parallelism_is_a_switch() -> None:
    argv = launched(spec_of(VLLM, parallelism={"tensor": 2, "expert": 2})).argv
    assert "--enable-expert-parallel" in argv
    assert "2" not in argv[argv.index("--enable-expert-parallel") + 1 :][:1]


@pytest.mark.parametrize(
    ("algorithm", "flag"),
    [
        ("DFLASH", "--speculative-dflash-block-size"),
        ("DSPARK", "--speculative-dspark-block-size"),
        ("DDTREE", "--speculative-num-draft-tokens"),
    ],
)
def test_block_size_has_the_algorithms_flag(algorithm: str, flag: str) -> None:
    speculative = {"algorithm": algorithm, "draftModel": "/d", "blockSize": 8, "draftWindow": 64}
    argv = launched(spec_of(KIMI, speculative=speculative)).argv
    assert after(argv, flag) == "8"
    assert after(argv, "--speculative-draft-window-size") == "64"


def test_metrics_can_be_left_out() -> None:
    assert "--enable-metrics" not in launched(spec_of(KIMI, metrics=False)).argv


def test_roles_have_their_disaggregation_flags() -> None:
    spec = spec_of(PAIR)
    prefill, decode = launched(spec, "prefill").argv, launched(spec, "decode").argv
    assert (after(prefill, "--disaggregation-mode"), after(decode, "--disaggregation-mode")) == ("prefill", "decode")
    assert after(prefill, "--disaggregation-bootstrap-port") == "8990"
    assert after(decode, "--disaggregation-bootstrap-port") == "8990"
    assert after(decode, "--page-size") == "64"
    assert "--disaggregation-mode" not in launched(spec_of(KIMI)).argv


def test_router_names_its_workers_in_a_fixed_order() -> None:
    spec = spec_of(PAIR)
    view = spec.role_view("router")
    one, other = render(view, "router", (), spec, PEERS), render(view, "router", (), spec, PEERS[::-1])
    assert one == other
    assert one.argv[3:].count("--prefill") == 2
    assert one.argv[one.argv.index("--prefill") :][:3] == ("--prefill", "http://192.0.2.10:30010", "8990")
    assert "http://[2001:db8::1]:30010" in one.argv
    assert "--page-size" not in one.argv
    assert dict(one.env)["CUDA_VISIBLE_DEVICES"] == ""


def test_custom_command_is_as_declared() -> None:
    assert launched(spec_of(CUSTOM)).argv[0] == "/opt/llama/llama-server"
    assert launched(spec_of(CUSTOM, args={"x": 1})).argv[-2:] == ("--x", "1")


def test_environment_binds_the_cards_and_keeps_marks_readable() -> None:
    launch = launched(spec_of(VLLM, env={"B": "2", "A": "$x", "CUDA_VISIBLE_DEVICES": "7", "STOKER_SPEC": "no"}))
    assert launch.env == (
        ("A", "$x"),
        ("B", "2"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("SPT_NOENV", "1"),
    )
    assert launch.gpu_uuids == ("GPU-3",)


def test_working_directory_is_as_systemd_shows_it() -> None:
    assert launched(spec_of(CUSTOM, workingDirectory="/srv/./x/")).working_directory == "/srv/x"


def test_hash_names_the_launch_and_nothing_else() -> None:
    launch = launched(spec_of(KIMI))
    assert launch_hash(launch) == launch_hash(launched(spec_of(KIMI, stop={"timeout": "90s"})))
    assert launch_hash(launch).startswith("v1:")
    assert launch_hash(replace(launch, user="root")) == launch_hash(replace(launch, user=None))
    changes: list[dict[str, Any]] = [
        {"argv": (*launch.argv, "x")},
        {"env": (*launch.env, ("Z", "1"))},
        {"user": "other"},
        {"working_directory": "/srv"},
        {"gpu_uuids": ("GPU-9",)},
    ]
    hashes = {launch_hash(replace(launch, **change)) for change in changes}
    assert len(hashes) == 5
    assert launch_hash(launch) not in hashes


def test_hash_stays_over_releases() -> None:
    launch = Launch(("/bin/x", "é"), (("A", "1"),), None, None, ("GPU-1",))
    assert launch_hash(launch) == "v1:ad67b45d8c8cd352e3382f090a17a5ea"


def test_a_retitled_router_still_runs_and_nothing_else_may_be_retitled() -> None:
    spec = spec_of(PAIR)
    router, prefill = launched(spec, "router"), launched(spec, "prefill")
    assert argv_runs(router, router.argv)
    assert argv_runs(router, ("sglang::router", "", "", ""))
    assert not argv_runs(prefill, ("sglang::router",))
    assert not argv_runs(router, (*router.argv, "x"))


def test_unknown_versions_take_the_nearest_known_before_them() -> None:
    assert (flags_of("sglang", "0.5.15").version, flags_of("sglang", "0.5.15").exact) == ("0.5.12", False)
    assert (flags_of("sglang", "0.5.23").version, flags_of("sglang", "0.5.23").exact) == ("0.5.23", True)
    assert (flags_of("vllm", "0.33.0+cu130").version, flags_of("vllm", "0.33.0+cu130").exact) == ("0.33.0", True)
    assert flags_of("vllm", "0.33.0rc1").exact is False
    assert flags_of("sglang", "0.1").version == "0.5.6"
    assert flags_of("sglang", None).version == "0.5.23"


def test_a_decode_peer_has_no_bootstrap_port() -> None:
    spec = spec_of(PAIR)
    argv = render(spec.role_view("router"), "router", (), spec, (Peer("decode", "h", 1, 2),)).argv
    assert argv[4:6] == ("--decode", "http://h:1")
