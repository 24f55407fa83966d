"""Takeover by a person: what counts is the fence that stands on the host now, not the one that the last look saw."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemon.sim.host import SimHost
from tests.simulation import loop
from tests.simulation.world import World, world_of

pytestmark = pytest.mark.fleet
THEIRS = "another-store 7 run-b"


async def _seen_by(world: World, host: SimHost) -> None:
    async with asyncio.timeout(60):
        while not any(deed.verb == "take-fence" and deed.exit_status == 0 for deed in host.history):
            await asyncio.sleep(0.5)


def test_a_fence_that_came_after_the_last_look_is_taken_over_too(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        host = SimHost("gpu-a", now=asyncio.get_running_loop().time)
        async with world_of(1, tmp_path, {"gpu-a": host}, period_s=300) as world:
            await world.declare_hosts(False)
            await _seen_by(world, host)
            before = fence_of(host)
            host.write_fence(THEIRS)
            assert await world.take_over("gpu-a")
            return before, fence_of(host)

    before, after = loop.run(main())
    assert before == after != THEIRS


def fence_of(host: SimHost) -> str:
    """What stands on the host."""
    return host.disk.files["/var/lib/stoker/fence"].decode().strip()
