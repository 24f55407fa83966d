"""Every recorded answer of nvidia-smi against what the product makes of it.

An input is `NAME.gpus.EXIT.txt` or `NAME.apps.EXIT.txt`, beside it the expected value as JSON. Names that begin with a
letter and a number are those of the field cases.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from daemon.host import gate_text, helper_text
from daemon.probes.nvidia_smi import number, parse_apps, parse_gpus
from daemon.probes.process import text as process_text

pytestmark = pytest.mark.strays
GOLDEN = Path(__file__).parent.parent / "golden" / "nvidia_smi"
CASES = sorted(path.name for path in GOLDEN.glob("*.txt"))


def understood(name: str) -> Any:
    """What the parsers make of a recorded answer, as plain data."""
    _, query, exit_status, _ = name.rsplit(".", 3)
    text = process_text((GOLDEN / name).read_bytes())
    if query == "apps":
        apps = parse_apps(int(exit_status), text)
        return {"unknown": asdict(apps)} if isinstance(apps, Unknown) else {"apps": [asdict(app) for app in apps]}
    gpus, warnings = parse_gpus(int(exit_status), text)
    said = [asdict(warning) for warning in warnings]
    if isinstance(gpus, Unknown):
        return {"unknown": asdict(gpus), "warnings": said}
    return {"gpus": [asdict(gpu) for gpu in gpus], "warnings": said}


@pytest.mark.parametrize("name", CASES)
def test_answer_is_understood_as_the_golden_file_says(name: str) -> None:
    expected = json.loads((GOLDEN / name).with_suffix(".json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(understood(name))) == expected


def test_the_driver_is_asked_for_columns_by_name_and_never_for_its_tree() -> None:
    """A26: elements of `-q -x` were renamed twice; power, which moved among them, is no input of anything."""
    scripts = (helper_text() + gate_text()).decode()
    asked = re.findall(r"^[^#\n]*\b(?:ask_smi [a-z]+|ask) \"?(-\S+)", scripts, re.MULTILINE)
    assert len(asked) == 5
    assert all(re.match(r"--query-(gpu|compute-apps)=", one) for one in asked)
    assert not re.search("power|nvidia-smi -q", scripts)


def test_no_answer_with_a_bad_status_is_ever_rows() -> None:
    row = (GOLDEN / "A28-blank-lines.gpus.0.txt").read_text(encoding="utf-8")
    for exit_status in [status for status in range(1, 256) if status != 14]:
        gpus, _ = parse_gpus(exit_status, row)
        assert isinstance(gpus, Unknown), exit_status
        assert isinstance(parse_apps(exit_status, ""), Unknown), exit_status


def test_faulted_card_is_not_the_emptiest_one() -> None:
    gpus, _ = parse_gpus(0, (GOLDEN / "A08-requires-reset.gpus.0.txt").read_text(encoding="utf-8"))
    assert not isinstance(gpus, Unknown)
    assert [(gpu.fault, gpu.memory_used_mib) for gpu in gpus] == [(Reason.GPU_NEEDS_RESET, None), (None, 80620)]


@pytest.mark.parametrize("cell", ["１２", "1_0", "0x10", "nan", "inf", "1e3", "12 GiB", "-", "Requested"])
def test_what_is_no_figure_is_refused(cell: str) -> None:
    with pytest.raises(ValueError):
        number(cell)


@given(st.text(alphabet=st.sampled_from("0123456789, .-[]NA/GPU\n\tMi%Bé\"'")), st.integers(0, 255))
def test_no_text_makes_the_parsers_raise(text: str, exit_status: int) -> None:
    parse_gpus(exit_status, text)
    parse_apps(exit_status, text)


@given(
    st.text(min_size=1, max_size=60).filter(
        lambda name: not set(name) & set("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
    )
)
def test_any_process_name_is_one_row_with_its_own_pid_and_memory(name: str) -> None:
    apps = parse_apps(0, f"GPU-00, 42, {name}, 818\nGPU-01, 43, python3, 1\n")
    assert not isinstance(apps, Unknown)
    assert [(app.gpu_uuid, app.pid, app.memory_mib) for app in apps] == [("GPU-00", 42, 818), ("GPU-01", 43, 1)]
    assert apps[0].name == name.strip()
