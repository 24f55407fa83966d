"""Bring a store of an earlier version to this one: in a process of its own, since alembic costs 9 MiB for ever.

Called by `files`, which holds the openers' lock and the mark of the one daemon, so that nobody works on the store
meanwhile. The process that upgrades inherits both: when the daemon is killed, it still ends in peace.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.domain.errors import StoreError
from daemon.store.schema import SCHEMA_VERSION


def upgrade(path: Path, locks: Sequence[int]) -> None:
    """Upgrade the file, with the copy beside it. Raises StoreError: then it is as it was."""
    argv = [sys.executable, "-P", "-m", "daemon.store.migrations", str(path), str(SCHEMA_VERSION)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=tuple(locks))
    if done.returncode == 0:
        return
    said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {done.returncode}"]
    raise StoreError(
        f"{path}: the upgrade to schema version {SCHEMA_VERSION} failed and changed nothing: {said[-1]}; "
        "check the disk, or run the Stoker that wrote it"
    )
