"""Dials are counted by how they ended, and connections while they are up."""

from __future__ import annotations

import pytest

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from tests.ssh.stage import fails, pool, serve, spec_of, until
from tests.ssh.test_handshake import silent

pytestmark = pytest.mark.fleet


async def test_dials_are_counted_and_connections_seen_while_they_are_up() -> None:
    async with serve() as sshd, pool() as roads:
        assert (roads.open_connections, roads.connects) == (0, {"ok": 0})
        for _ in range(2):  # one connection for both
            await roads.road("a", spec_of(sshd)).run(("true",), b"", 10)
        assert (roads.open_connections, roads.connects) == (1, {"ok": 1})
        sshd.cut()
        await until(lambda: roads.open_connections == 0)
        await roads.road("a", spec_of(sshd)).run(("true",), b"", 10)
        assert (roads.open_connections, roads.connects) == (1, {"ok": 2})
        roads.forget("a")
        assert roads.open_connections == 0


async def test_dials_that_fail_are_counted_by_their_reason() -> None:
    async with serve() as sshd, pool() as roads, silent() as port:
        with fails(Reason.HOST_KEY_UNKNOWN):
            await roads.road("a", spec_of(sshd, host_key=None)).run(("true",), b"", 10)
        spec = spec_of(sshd, port=port)
        with pytest.raises(TransportError):  # its caller's deadline ends the dial
            await roads.road("b", spec).run(("true",), b"", 0.3)
        assert roads.connects == {"ok": 0, "HostKeyUnknown": 1, "SSHBannerTimeout": 1}
