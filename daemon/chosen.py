"""What this machine's settings choose for the parts that know no settings: connections and watches."""

from __future__ import annotations

import os

from daemon.bus import Manners, WatchLimits
from daemon.settings import Settings
from daemon.ssh import SshSettings


def ssh_settings(settings: Settings) -> SshSettings:
    """How this machine's settings prove it to hosts."""
    return SshSettings(
        identity=settings.ssh_identity,
        agent=os.environ.get("SSH_AUTH_SOCK") if settings.ssh_agent else None,
        known_hosts=settings.ssh_known_hosts,
        accept_unknown_host_keys=settings.accept_unknown_host_keys,
        connect_timeout_s=settings.connect_timeout_s,
        login_timeout_s=settings.login_timeout_s,
    )


def watch_limits(settings: Settings) -> WatchLimits:
    """How patient and how sparing a watch is."""
    return WatchLimits(
        Manners(settings.watch_answer_s, settings.watch_ping_s, settings.watch_spacing_s),
        retry_s=settings.watch_retry_s,
        unwatched_period_s=settings.unwatched_period_s,
    )
