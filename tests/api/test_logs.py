"""What the daemon's own log shows of an error."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import structlog
from api.serve import set_up_logs
from daemon.settings import Settings
set_up_logs(Settings(data="/nowhere", log_format={form!r}))
def body():
    token = "in-a-" + "local-variable"
    raise ValueError("the cause")
try:
    body()
except ValueError:
    structlog.get_logger("stoker").exception("failed")
"""


def test_a_traceback_shows_its_cause_and_no_local_variables() -> None:
    for form in ("console", "json"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True, check=True
        )
        assert "the cause" in done.stderr
        assert "in-a-local-variable" not in done.stderr
