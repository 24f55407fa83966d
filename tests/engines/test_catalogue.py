"""The flag table that ships with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import daemon.engines
from daemon.engines import sglang, vllm
from daemon.engines.catalogue import flags_of
from tests.engines.specs import KIMI, VLLM, spec_of

TABLE = Path(daemon.engines.__file__ or "").with_name("flags.json")


def test_the_table_stays_small() -> None:
    assert TABLE.stat().st_size < 120_000


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.23"])
def test_every_flag_rendered_without_speculation_is_in_every_sglang(version: str) -> None:
    flags = flags_of("sglang", version)
    spec = spec_of(KIMI, speculative=None, parallelism={"tensor": 2, "pipeline": 2, "data": 2, "expert": 2})
    assert [
        one.spelling for one in sglang.options(flags, spec, "prefill", spec) if one.spelling not in flags.by_spelling
    ] == []


@pytest.mark.parametrize("version", ["0.12.0", "0.20.2", "0.33.0"])
def test_every_flag_rendered_is_in_every_vllm(version: str) -> None:
    flags = flags_of("vllm", version)
    spec = spec_of(
        VLLM, parallelism={"tensor": 2, "pipeline": 2, "data": 2, "expert": 2}, contextLength=8, memoryFraction=0.5
    )
    assert [one.spelling for one in vllm.options(flags, spec) if one.spelling not in flags.by_spelling] == []


def test_vllm_dotted_and_short_spellings_are_found() -> None:
    flags = flags_of("vllm", "0.33.0")
    for spelling in ("-tp", "--speculative-config.method", "--no-enable-prefix-caching"):
        assert flags.find(spelling) is not None
    assert flags_of("sglang", "0.5.23").find("--speculative-algorithm.x") is None
