"""One seed's world: hosts, roads, a store on memory, the daemon that comes and goes, and the wall clock.

`Person` methods are what an operator does through the API. Nothing here checks anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daemon.controller import Controller
from daemon.domain.errors import StokerError
from daemon.domain.host import HostSpec
from daemon.settings import Settings
from daemon.sim.host import SimHost
from daemon.store import Store
from daemon.store.rows import StoredObject
from tests.simulation.road import BY_PERSON, SimRoads, Traffic
from tests.simulation.specs import Wish, Wishes

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def dice_for(seed: int, purpose: str) -> random.Random:
    """Dice of their own for each purpose: what one part draws changes nothing for another."""
    return random.Random(f"{seed} {purpose}")


@dataclass(slots=True)
class World:
    """Everything of one run. `log` is what the daemon logged at warning and above, with tracebacks."""

    seed: int
    folder: Path
    hosts: dict[str, SimHost]
    traffic: Traffic
    wishes: Wishes
    store: Store | None = None
    controller: Controller | None = None
    ended: list[BaseException] = field(default_factory=list)
    period_s: int = 10
    stepped_s: float = 0.0
    acknowledged: dict[str, tuple[str, Wish]] = field(default_factory=dict)  # name → uid and what was declared
    deleting: dict[str, str] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)
    _ids: random.Random = field(default_factory=random.Random)
    _dice: random.Random = field(default_factory=random.Random)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        """The daemon's wall clock, which a fault may step."""
        return NOON + timedelta(seconds=self.now_s() + self.stepped_s)

    # ---- the daemon ----

    async def start_daemon(self) -> None:
        """Open the store and run the controller over it, as `api.serve` does."""
        assert self._task is None
        self._open = AsyncExitStack()
        self.store = await self._open.enter_async_context(Store.open(self.folder / "stoker.db", new_id=self._new_id))
        self.traffic.run += 1
        self.controller = Controller(
            self.store,
            Settings(data=self.folder, unwatched_period_s=self.period_s),
            roads=SimRoads(self.traffic),  # type: ignore[arg-type]
            clock=asyncio.get_running_loop().time,
            wall=self.wall,
            dice=self._dice.random,
        )
        self._task = asyncio.get_running_loop().create_task(self._run(self.controller))

    async def _run(self, controller: Controller) -> None:
        try:
            await controller.run()
        except Exception as error:
            self.ended.append(error)

    async def stop_daemon(self) -> None:
        """It dies wherever it is; what it sent is still on its way."""
        task, self._task, self.store, self.controller = self._task, None, None, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self._open.aclose()

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))

    # ---- what a person does ----

    async def declare_hosts(self, exclusive: bool, more: Mapping[str, Any] | None = None) -> None:
        """The Host objects, in mode enforce; `more` is what else they say."""
        assert self.store is not None
        for number, name in enumerate(self.hosts):
            said = {
                "ssh": {"address": f"192.0.2.{number + 1}"}, "mode": "enforce", "period": f"{self.period_s}s",
                "exclusive": exclusive, "gpus": {"count": 8}, **(more or {}),
            }  # fmt: skip
            spec = HostSpec.model_validate(said).model_dump(by_alias=True, exclude_none=True, mode="json")
            await self.store.put("Host", name, spec, actor="person", now=self.wall())

    async def declare(self, wish: Wish) -> bool:
        """Put a spec; whether it was acknowledged. Refused while its name terminates, or no daemon is there to ask."""
        if self.store is None:
            return False
        try:
            made = await self.store.put("ServingSpec", wish.name, wish.json(), actor="person", now=self.wall())
        except StokerError:  # terminating, or the daemon went away just now
            return False
        self.acknowledged[wish.name] = (made.object.uid, wish)
        return True

    async def delete(self, name: str) -> bool:
        """Ask for a deletion; whether it was acknowledged."""
        if self.store is None:
            return False
        try:
            await self.store.delete("ServingSpec", name, self.wall(), actor="person")
        except StokerError:
            return False
        self.deleting[name] = self.acknowledged.pop(name)[0]
        return True

    async def take_over(self, host: str) -> bool:
        """`stoker takeover HOST`; whether it went through."""
        if self.controller is None:
            return False
        token = BY_PERSON.set(True)
        try:
            await self.controller.takeover(host, actor="person")
        except StokerError:
            return False
        finally:
            BY_PERSON.reset(token)
        return True

    async def objects(self) -> tuple[StoredObject, ...]:
        assert self.store is not None
        return await self.store.list("ServingSpec")

    async def said(self, uid: str, condition: str) -> tuple[str, int]:
        """What the daemon says: the condition's status and the generation it is of."""
        assert self.store is not None
        found = await self.store.status("ServingSpec", uid)
        one = found.condition(condition) if found is not None else None
        return ("none", 0) if one is None else (one.status, one.observed_generation)


@asynccontextmanager
async def world_of(seed: int, folder: Path, hosts: dict[str, SimHost], *, period_s: int = 10) -> AsyncIterator[World]:
    """A world with a running daemon, which looks at each host so often; all of it ends with the block."""
    traffic = Traffic(hosts, dice_for(seed, "roads"))
    made = World(seed, folder, hosts, traffic, Wishes(dice_for(seed, "specs"), tuple(hosts)), period_s=period_s)
    made._ids, made._dice = dice_for(seed, "ids"), dice_for(seed, "daemon")
    await made.start_daemon()
    try:
        yield made
    finally:
        await made.stop_daemon()
