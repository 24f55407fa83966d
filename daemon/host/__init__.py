"""The scripts Stoker keeps on hosts: their text, version, places and exit statuses.

Read by `daemon.ssh`, which installs them, and by whoever calls a verb. `stoker-host` is joined from its parts here, so
that what lies on a host is one file.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

VERSION = 3
HELPER_PATH = "/var/lib/stoker/stoker-host"
GATE_PATH = "/var/lib/stoker/gate"
FENCE_PATH = "/var/lib/stoker/fence"
HOLD_PATH = "/etc/stoker/hold"
UNIT_FOLDER = "/etc/systemd/system"

EXIT_OK = 0
EXIT_FAILED = 1  # tried; section `error` has the text
EXIT_TOO_LARGE = 27  # of a section: its data was left out
EXIT_USAGE = 64
EXIT_GROUND_CHANGED = 75
EXIT_FENCED = 76
EXIT_HELD = 77
EXIT_IMPOSSIBLE = 78
EXIT_TIMED_OUT = 124  # of a section: its tool was ended at its limit
EXIT_NO_TOOL = 127  # of a section

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"^# @include (\S+)\n", re.MULTILINE)


def _text(name: str) -> str:
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _text(found[1]), text)


@cache
def helper_text() -> bytes:
    """The whole of `stoker-host`."""
    return _text("stoker-host").encode()


@cache
def gate_text() -> bytes:
    """The whole of `gate`."""
    return _text("gate").encode()
