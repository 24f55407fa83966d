"""What a seed declares: one to three specs on cards of their own, and how they change. Knows nothing of hosts.

Every change is of a kind that a person makes: another launch, another figure outside the launch, other cards, another
host, suspend, stop, delete. Cards and ports never clash, since admission would refuse that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from daemon.domain.spec import ServingSpec

CARDS = 8
PYTHON = "/opt/venv/bin/python"


@dataclass(frozen=True, slots=True)
class Wish:
    """One spec as a person wants it now. `nccl` is a second port that its SGLang binds, 0: none."""

    name: str
    host: str
    gpus: tuple[int, ...]
    port: int
    context: int = 8192
    period_s: int = 60
    run: bool = True
    suspend: bool = False
    engine: str = "sglang"
    user: str = ""
    kill: str = "orphans"
    grace_s: int = 20
    nccl: int = 0

    def json(self) -> dict[str, Any]:
        """As the store keeps it after admission."""
        said = {
            "engine": {"name": self.engine, "python": PYTHON},
            "model": {"path": f"/models/{self.name}", "servedName": self.name},
            "parallelism": {"tensor": len(self.gpus)},
            "contextLength": self.context,
            "placement": {"host": self.host, "gpus": list(self.gpus)},
            "port": self.port,
            "readiness": {"period": f"{self.period_s}s"},
            "run": self.run,
            "suspend": self.suspend,
            "user": self.user or None,
            "args": {"nccl-port": str(self.nccl)} if self.nccl else {},
            "strays": {"kill": self.kill, "grace": f"{self.grace_s}s"},
        }
        return ServingSpec.model_validate(said).model_dump(by_alias=True, exclude_none=True, mode="json")

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.nccl) if self.nccl else (self.port,)

    @property
    def unit(self) -> str:
        return f"stoker-{self.name}.server.service"


@dataclass(slots=True)
class Wishes:
    """All specs of one seed; gives cards out and takes them back."""

    dice: random.Random
    hosts: tuple[str, ...]
    now: dict[str, Wish] = field(default_factory=dict)

    def draw(self) -> list[Wish]:
        """The first one to three."""
        return [made for number in range(self.dice.randint(1, 3)) if (made := self._new(f"m{number}")) is not None]

    def changed(self, name: str) -> Wish:
        """Another wish for that spec."""
        old = self.now[name]
        kind = self.dice.choice(("launch", "launch", "launch", "figure", "cards", "stop", "suspend"))
        match kind:
            case "launch":
                made = replace(old, context=old.context + 1024)
            case "figure":
                made = replace(old, period_s=old.period_s + 5)
            case "cards":
                made = self._placed(old) or old
            case "stop":
                made = replace(old, run=not old.run)
            case _:
                made = replace(old, suspend=not old.suspend)
        self.now[name] = made
        return made

    def resumed(self, name: str) -> Wish:
        """As at the end: neither stopped nor suspended."""
        self.now[name] = replace(self.now[name], run=True, suspend=False)
        return self.now[name]

    def drop(self, name: str) -> Wish:
        """Deleted; its cards and port are free at once, as for admission."""
        return self.now.pop(name)

    def again(self, name: str) -> Wish | None:
        """A new spec under a name that was deleted."""
        return self._new(name)

    def _new(self, name: str) -> Wish | None:
        engine = self.dice.choice(("sglang", "sglang", "vllm"))
        port = next(p for p in range(30001, 30100) if all(p != wish.port for wish in self.now.values()))
        made = self._placed(Wish(name, self.hosts[0], (0,), port, engine=engine))
        if made is not None:
            self.now[name] = made
        return made

    def _placed(self, wish: Wish) -> Wish | None:
        """The wish on free cards of a host drawn; None when there are none."""
        host, count = self.dice.choice(self.hosts), self.dice.choice((1, 2, 2, 4))
        taken = {
            gpu for other in self.now.values() if other.host == host and other.name != wish.name for gpu in other.gpus
        }
        free = [gpu for gpu in range(CARDS) if gpu not in taken]
        if len(free) < count:
            return None
        first = self.dice.randrange(len(free) - count + 1)
        return replace(wish, host=host, gpus=tuple(free[first : first + count]))
