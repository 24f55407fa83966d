"""What a newcomer sees first: a clone on a bare Debian 12, `make demo`, the first healed crash. Downloads included."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.hosts.demo_terminal import TWO_CORES, on_terminal, picture, plain
from tests.hosts.test_bare_root import CLONE, base, script_in

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
__all__ = ["base"]
HEALED_WITHIN_S = 180.0
SIZE = (110, 34)
# RECORD_DEMO=FOLDER keeps the pictures there, as demo.svg and demo.txt.
RECORD = os.environ.get("RECORD_DEMO")
DEMO = """\
trap : INT
make demo || echo "make ended with $?"
echo "left: $(ls -d /tmp/stoker-demo-* 2>/dev/null | wc -l) folders," \
  "$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx 'api[.]serve') daemons"
"""
CRASH = re.compile(r"^1 crash +gpu-1 deepseek +(\S+ s) +(\S+ s|\d+m\d\ds) ", re.MULTILINE)

ZOMBIE = re.compile(r"^2 zombie +gpu-3 coder +(\S+ s) +(\S+ s|\d+m\d\ds) .*signal-term", re.MULTILINE)


def test_e_from_nothing_to_the_first_healed_crash(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "pip-cache"
    cache.mkdir()
    commands = CLONE + DEMO
    argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--"]
    argv += ["sh", "-c", script_in(base, tmp_path, cache), "sh", commands]
    with on_terminal(argv, *SIZE) as terminal:
        first = terminal.wait(lambda text: "HOST" in text and "CARDS" in text, "a fleet on the screen", 900)
        serving = terminal.wait(lambda text: "Next: " in text or "1 crash" in text, "all specs generating", 300)
        healed = terminal.wait(lambda text: CRASH.search(text) is not None, "a healed crash", 300)
        shown = CRASH.search(plain(terminal.frames[-1][1]))
        assert shown is not None
        terminal.wait(lambda text: ZOMBIE.search(text) is not None, "a healed zombie", 300)
        kept = terminal.frames[-1][1]
        terminal.key(b"\x03")
        assert terminal.end(60) == 0
    told = (
        f"\nclone to first picture {first:.1f} s, all specs generate {serving:.1f} s, first crash healed {healed:.1f} s"
        f" on {min(TWO_CORES, len(os.sched_getaffinity(0)))} cores, nothing cached,"
        f" load {os.getloadavg()[0]:.0f}; the crash: found {shown[1]}, healed {shown[2]}"
    )
    with capsys.disabled():
        print(told)
    after = terminal.text()
    assert "left: 0 folders, 0 daemons" in after, after[-3000:]
    assert re.search(r"FAULT +WHERE +FOUND AFTER", after)
    folder = Path(RECORD or tmp_path)
    picture(kept, SIZE, "make demo", folder / "demo.svg")
    assert "CARDS" in (folder / "demo.txt").read_text()
    assert healed <= HEALED_WITHIN_S
