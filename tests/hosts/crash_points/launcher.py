"""The real daemon as `api.serve` puts it together, with a recorder on its roads and its store.

Run as `python -P -m tests.hosts.crash_points.launcher`, with STOKER_… as the daemon is, and CRASH_POINTS_FOLDER for the
recorder.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvloop

from api.serve import serve, set_up_logs
from daemon.controller import Controller
from daemon.settings import Settings, load_settings
from daemon.ssh import SshSettings
from daemon.store import Store
from tests.hosts.crash_points.recorder import Recorder
from tests.hosts.crash_points.watched import WatchedRoads, watched_store


def main() -> None:
    os.umask(0o077)
    settings = load_settings(os.environ)
    set_up_logs(settings)
    recorder = Recorder(Path(os.environ["CRASH_POINTS_FOLDER"]))

    def hands(store: Store, settings: Settings) -> Controller:
        return Controller(store, settings, roads=WatchedRoads(_ssh(settings), recorder))

    async def run() -> None:
        await serve(settings, stop=asyncio.Event(), store_type=watched_store(recorder), hands=hands)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _ssh(settings: Settings) -> SshSettings:
    return SshSettings(
        identity=settings.ssh_identity,
        known_hosts=settings.ssh_known_hosts,
        connect_timeout_s=settings.connect_timeout_s,
        login_timeout_s=settings.login_timeout_s,
    )


if __name__ == "__main__":
    main()
