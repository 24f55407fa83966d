"""All commands, and how one of them is run: `run` turns every error into one line that says what to do.

Called by `api.cli.main`. Commands are in the modules beside.
"""

from __future__ import annotations

import os
import sys

import typer

from api.cli import change, classify_check, demo, local, record_replay, show, strays
from api.cli.text import error_line, problem_lines
from api.client import Refused, Unreachable
from daemon.domain.errors import AdmissionError, StokerError

OK, FAILED, USAGE, NO_DAEMON = 0, 1, 2, 3

app = typer.Typer(
    name="stoker",
    help="Keeps bare-metal GPU hosts serving what was declared.",
    epilog="Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon answered.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (show, strays, change, local, record_replay, classify_check, demo):
    module.add_to(app)


def run() -> None:
    """Run one command and exit."""
    try:
        app(prog_name="stoker")
    except Unreachable as error:
        error_line(f"{error}: start it with stoker serve, or set STOKER_URL")
        sys.exit(NO_DAEMON)
    except Refused as error:
        problem_lines("", error.detail, _hint(error.status) or error.hint, error.problems)
        sys.exit(FAILED)
    except AdmissionError as error:
        problem_lines("", str(error), "", tuple(error.problems))
        sys.exit(FAILED)
    except StokerError as error:
        error_line(str(error))
        sys.exit(FAILED)
    except BrokenPipeError:
        # The reader went away (`| head`): what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _hint(status: int) -> str:
    return "set STOKER_TOKEN or STOKER_TOKEN_FILE to this daemon's token" if status == 401 else ""
