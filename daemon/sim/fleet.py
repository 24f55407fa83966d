"""Several simulated hosts at once, each behind its own SSH server, with the one key that opens them all.

Made by `stoker demo` and by tests.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from daemon.sim.bus_units import UnitFacts
from daemon.sim.host import SimHost
from daemon.sim.server import LOOPBACK, SimServer


@dataclass(frozen=True, slots=True)
class SimFleet:
    """Hosts by name, their servers, and the files a client needs: a private key and known hosts."""

    hosts: Mapping[str, SimHost]
    servers: Mapping[str, SimServer]
    identity: Path
    known_hosts: Path

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, names: Iterable[str], folder: Path, wall_s: float, gpus: int = 8, seed: int = 0
    ) -> AsyncIterator[SimFleet]:
        """All of them listening until the end of the block; key and known hosts are put into `folder`.

        `wall_s` is what their wall clocks say now.
        """
        key = asyncssh.generate_private_key("ssh-ed25519", "the practice fleet's")
        hosts = {name: SimHost(name, gpus=gpus, seed=seed, now=time.monotonic, wall_s=wall_s) for name in names}
        async with contextlib.AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(server_of(host, key).opened()) for name, host in hosts.items()
            }
            identity, known = folder / "id_ed25519", folder / "known_hosts"
            with os.fdopen(os.open(identity, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(key.export_private_key())
            known.write_text("".join(server.known_hosts_line() for server in servers.values()))
            yield cls(hosts, servers, identity, known)

    def doors(self) -> dict[str, dict[str, Any]]:
        """`ssh` of each host's manifest."""
        return {
            name: {"address": LOOPBACK, "port": server.port, "user": "root", "hostKey": server.host_key_line}
            for name, server in self.servers.items()
        }


def server_of(host: SimHost, key: asyncssh.SSHKey) -> SimServer:
    """The server of one host, not yet listening."""
    return SimServer(host, lambda name: facts(host, name), lambda: list(host.units.known), key, time.monotonic)


def facts(host: SimHost, name: str) -> UnitFacts:
    """What its systemd would say of a unit on the bus."""
    unit = host.unit(name)
    return UnitFacts(
        name=name,
        load_state=unit.load_state,
        active_state=unit.active,
        sub_state=unit.sub,
        file_state=host.units.file_state(unit),
        path=unit.definition.fragment,
        invocation_id=unit.invocation,
        inactive_exit_us=unit.inactive_exit_us,
        result=unit.result,
        main_pid=unit.main.pid if unit.main is not None else 0,
        restarts=unit.restarts,
        exit_status=unit.exec_status,
        needs_reload=host.units.needs_reload(unit),
    )
