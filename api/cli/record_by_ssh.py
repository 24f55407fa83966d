"""One look at a host without a daemon: by its manifest and this machine's SSH settings. For `stoker record -f`."""

from __future__ import annotations

import os
from typing import Any

from api.cli.files import Found
from api.cli.recording_files import declared_in
from daemon.by_hand import ByHand, look_json, whole
from daemon.chosen import ssh_settings
from daemon.domain.errors import StokerError
from daemon.domain.host import HostSpec
from daemon.install import ensure_helper
from daemon.reconcile import wanted
from daemon.replay import declared_of
from daemon.settings import load_settings, monotonic, wall_clock
from daemon.ssh import Roads


async def look(name: str | None, found: list[Found]) -> dict[str, Any]:
    """A recording of the host of that name. Raises: StokerError."""
    hosts, specs = declared_in(found)
    chosen = _chosen(name, hosts)
    settings = load_settings(os.environ)
    roads = Roads(ssh_settings(settings), hosts.get)
    try:
        road = roads.road(chosen, hosts[chosen])
        helper = await ensure_helper(road, hosts[chosen], auto=False)
        here = [declared for one in specs for declared in declared_of(one, chosen)]
        by = ByHand(monotonic, wall_clock, settings.look_timeout_s)
        knows = {"manifests": [one.document for one in found]}
        return await look_json(road, chosen, whole(wanted(here), helper.version), by, knows)
    finally:
        await roads.close()


def _chosen(name: str | None, hosts: dict[str, HostSpec]) -> str:
    if name is None and len(hosts) == 1:
        return next(iter(hosts))
    if name is None or name not in hosts:
        known = ", ".join(sorted(hosts)) or "none"
        raise StokerError(f"name one of the hosts in the manifests: {known}")
    return name
