"""Lines of the kernel log against what the product makes of them: NAME.txt, beside it what it is to give as JSON.

Forms are those of real logs; machines, cards and pids are made up. Names with a letter and a number are field cases.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.health import KernelLog
from daemon.probes.kernel_log import parse_kernel_log, pci_address, shown, victims

GOLDEN = Path(__file__).parent.parent / "golden" / "kernel_log"
CASES = sorted(path.stem for path in GOLDEN.glob("*.txt"))

pytestmark = pytest.mark.strays


def plain(log: KernelLog) -> Any:
    """As data of JSON."""
    return {
        "xids": [{**asdict(xid), "card": shown(xid.card)} for xid in log.xids],
        "switches": [asdict(error) for error in log.switches],
        "kills": [asdict(kill) for kill in log.kills],
        "vouched": sorted(shown(card) for card in log.vouched),
    }


def text_of(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_lines_are_understood_as_the_golden_file_says(name: str) -> None:
    assert plain(parse_kernel_log(text_of(name))) == json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_a_line_in_the_middle_of_another_one_is_nobodys_word() -> None:
    assert parse_kernel_log(text_of("nothing-of-it")) == KernelLog()


def test_the_victim_is_found_by_the_unit_whose_cgroup_it_was_in() -> None:
    """D15."""
    kills = parse_kernel_log(text_of("D15-oom")).kills
    assert [kill.comm for kill in victims(kills, "x.service")] == ["VLLM::Worker_TP"]
    assert not [*victims(kills, "ax.service")]


@pytest.mark.parametrize("text", ["0000:3b:00", "00000000:3B:00.0", "3b:00.0", "0:3b:0"])
def test_one_card_has_many_spellings(text: str) -> None:
    assert pci_address(text) == (0, 0x3B, 0)


@pytest.mark.parametrize("text", ["", "3b", "x:y:z", "1:2:3:4", ":3b:00", "000000000:3b:00"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert pci_address(text) is None


_PARTS = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, ", "154, GPU recovery action changed from 0x0 (None) to 0x1 (", "[    1.5] ",
        "Out of memory: Killed process 12 (", ") total-vm:", "oom-kill:constraint=", ",task_memcg=/a/b.service,task=",
        ",pid=3,uid=4", "nvidia-nvswitch0: SXid (PCI:0): 1, Fatal", "<3>", "3,1,2,-;", " kernel: ", "\n",
    ]
)  # fmt: skip


@given(st.lists(_PARTS | st.text(max_size=12), max_size=30).map("".join))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    log = parse_kernel_log(text)
    assert all(kill.pid >= 0 for kill in log.kills)


def test_a_flood_is_read_in_time_that_grows_with_its_length_alone() -> None:
    hostile = "".join(
        f"[{n}.0] " + "a" * 1500 + " kernel: Killed process 1 (" + ") score" * 60 + "\n" for n in range(3000)
    )
    began = time.process_time()
    parse_kernel_log(hostile)
    assert time.process_time() - began < 10.0
