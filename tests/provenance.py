"""Of what state of the source a kept result tells, and when: the first lines of every RESULT.txt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from daemon.settings import wall_clock


def made() -> Iterator[str]:
    """When, of which state of the source, and by what."""
    asked = ("git", "describe", "--always", "--dirty", "--exclude=*")
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    yield f"{wall_clock():%Y-%m-%d %H:%M} UTC, revision {told.stdout.strip() or 'unknown'}"
    yield f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
