"""The command line. Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon answered, 130 ended by Ctrl-C.

`main` is the entry point. The commands are in `commands` and the modules beside; nothing is imported before `main`.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run one command and exit. Ctrl-C while the commands are imported, most of a second, ends it without a trace."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from api.cli.commands import run  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
