"""Every fault of the demo, as it is shown in a pipe: found, answered as the laws say, healed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
ROOT = Path(__file__).parents[2]
ALL_S = 900


def test_every_fault_is_found_answered_and_healed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "from api.cli import main; main()", "demo", "--for", str(ALL_S)]
    with subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if len(re.findall(r"^  [=x] ", said, re.MULTILINE)) == 5:
                break
        demo.send_signal(signal.SIGINT)
        said += demo.stdout.read()
    print(said[said.index("fault 1") :])
    assert demo.returncode == 0, said
    told = dict(
        zip(
            re.findall(r"^fault \d, (\S+) ", said, re.MULTILINE),
            re.split(r"^fault .*\n", said, flags=re.MULTILINE)[1:],
            strict=True,
        )
    )
    assert list(told) == ["crash", "zombie", "edit", "first-request", "trainer"]
    assert "EngineCrashed" in told["crash"]
    assert not _actions(told["crash"])  # systemd's own restart serves: nothing is to be done
    killed = re.search(r"ranks ([\d, ]+) live on", told["zombie"])
    assert killed
    assert re.search(rf"^  >.*signal-term {killed[1]} ", told["zombie"], re.MULTILINE)
    assert _actions(told["edit"])[0] == "put-unit"
    assert told["first-request"].count("EngineCrashed: ") >= 1
    before, mended = told["first-request"].split("working build back")
    assert "Ready True" not in before
    if "has loaded the broken one" in mended:  # and dies of its first request yet
        assert mended.index("EngineCrashed: ") < mended.index("Ready True")
    trainer = re.search(r"trains on card 4: pid (\d+)", told["trainer"])
    assert trainer
    assert f"ForeignHolder: pid {trainer[1]} " in told["trainer"]
    assert _actions(told["trainer"]) == ["unit-start"]  # and that only after the training had ended by itself
    assert told["trainer"].index("the training ends by itself") < told["trainer"].index("unit-start")

    found = dict(re.findall(r"^\d +(\S+) .* s by (\w+) ", said, re.MULTILINE))
    assert found.pop("edit") in ("LaunchChanged", "UnitDrift")
    reasons = {"crash": "EngineCrashed", "zombie": "OrphanWorkers", "first-request": "EngineCrashed"}
    assert found == {**reasons, "trainer": "ForeignHolder"}


def _actions(text: str) -> list[str]:
    return re.findall(r"^  > .* (put-unit|remove-unit|unit-\w+|signal-\w+) ", text, re.MULTILINE)
