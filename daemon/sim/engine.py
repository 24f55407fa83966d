"""Engines as processes: what every kind shares. A launcher from argv, ranks below it, a load in steps, memory, an end.

`launch` is what a unit's main process becomes. What differs between SGLang and vLLM is in `sglang` and `vllm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from daemon.sim.agenda import Timer
from daemon.sim.machine import Machine
from daemon.sim.processes import EXITED, KILLED, Reply, Request, SimProcess
from daemon.sim.serving import Api

FIRST_CARD_MIB = 518  # what each rank but the first also holds on the first card
Step = tuple[float, Callable[[], None]]


@dataclass(slots=True)
class Switches:
    """The faults of one unit's engine, kept over its restarts. `crash_first` is a build's, which a process loads at its
    start and keeps; the others are asked at each event."""

    crash_first: bool = False
    crash_above: int = 0
    hang: bool = False
    refuse: str = ""
    load_s: float = 0.0
    load_fail: str = ""
    load_hang: bool = False
    deaf: bool = False
    linger_s: float = 0.0
    health_status: int = 0
    served_name: str = ""
    tokens: int | None = None
    memory_mib: int = 0


class Flags:
    """A command line read by name without dashes: `words` are the positional ones."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        self.words: list[str] = []
        self.by_name: dict[str, str] = {}
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word.lstrip("-")[:1].isdigit():
                self.words.append(word)
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if not equals and rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            self.by_name[name] = value

    def text(self, *names: str, default: str = "") -> str:
        return next((self.by_name[name] for name in names if self.by_name.get(name)), default)

    def number(self, *names: str, default: int) -> int:
        found = self.text(*names)
        return int(found) if found.isdigit() else default

    def fraction(self, *names: str, default: float) -> float:
        try:
            return float(self.text(*names) or default)
        except ValueError:
            return default


class Engine(ABC):
    """One running server. A subclass says what it prints, which processes it has and how it fails."""

    kind = ""
    swallowed = "AttributeError"

    def __init__(self, machine: Machine, main: SimProcess, flags: Flags, unit: str, switches: Switches) -> None:
        self.machine, self.main, self.flags, self.unit, self.switches = machine, main, flags, unit, switches
        self.ranks: list[SimProcess] = []
        self.helpers: list[SimProcess] = []
        self.timers: list[Timer] = []
        self.size, self.port, self.model = 1, 0, ""
        self.generations = 0
        self.crash_first = switches.crash_first
        self.over = False
        self.api = Api(self.kind, flags, switches)

    # ---- for subclasses ----

    @abstractmethod
    def begin(self) -> None:
        """The launcher was executed."""

    @abstractmethod
    def crash(self, text: str) -> None:
        """The rank that generates died with this exception."""

    @abstractmethod
    def lose_rank(self, process: SimProcess) -> None:
        """A rank ended by itself, or somebody ended it."""

    def say(self, text: str) -> None:
        """Each line is a message of the journal, as journald splits what a service prints."""
        invocation = self.main.environment("INVOCATION_ID") or ""
        for line in text.split("\n"):
            self.machine.say(self.unit, invocation, line)

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        def unless_over() -> None:
            if not self.over and self._lives(self.main):
                do()

        self.timers.append(self.machine.after(delay_s, unless_over))

    def _lives(self, process: SimProcess) -> bool:
        return self.machine.processes.by_pid.get(process.pid) is process

    def fork(self, title: str, why: str, *, parent: SimProcess | None = None) -> SimProcess:
        above = parent or self.main
        child = self.machine.processes.spawn(
            self.main.argv, self.main.cgroup, self.main.whose, f"{why} of {self.unit}", parent=above,
            uid=self.main.uid, environ=self.main.environ, exe=self.main.exe, cwd=self.main.cwd, comm=title[:15],
        )  # fmt: skip
        child.title, child.deaf = title, self.switches.deaf
        if "SPT_NOENV" not in dict(self.main.environ):
            child.environ = ()
        return child

    def rank_ends(self, rank: SimProcess) -> Callable[[int, int], None]:
        def ended(_code: int, _status: int) -> None:
            if not self.over and self._lives(self.main):
                self.lose_rank(rank)

        return ended

    # ---- cards ----

    def cards(self) -> list[int]:
        """The numbers of the cards that CUDA shows this process."""
        present = [card.number for card in self.machine.cards.present]
        named = self.main.environment("CUDA_VISIBLE_DEVICES")
        if named is None:
            return present
        by_uuid = {self.machine.cards.all[number].uuid: number for number in present}
        found: list[int] = []
        for word in filter(None, (part.strip() for part in named.split(","))):
            if word.isdigit() and int(word) < len(present):
                found.append(present[int(word)])
            elif word in by_uuid:
                found.append(by_uuid[word])
            else:
                break
        return found

    def share_mib(self) -> int:
        """What a rank holds once it is loaded."""
        total = self.machine.cards.total_mib
        part = self.flags.fraction("mem-fraction-static", "gpu-memory-utilization", default=0.85)
        return self.switches.memory_mib or int(total * min(part, 0.97))

    def grow(self, part: float) -> str:
        """Every rank holds this part of its share; the text of the error when a card is too small or missing."""
        cards, cell = self.cards(), self.machine.cards
        if self.size > len(cards):
            return "RuntimeError: CUDA error: invalid device ordinal"
        for number, rank in enumerate(self.ranks):
            card, want = cards[number], int(self.share_mib() * part)
            free = cell.total_mib - cell.used_mib(cell.all[card]) + rank.memory.get(card, 0)
            if want > free:
                return _out_of_memory(want, free, cell.total_mib)
            cell.take(rank, card, want)
            if number and card != cards[0]:
                cell.take(rank, cards[0], FIRST_CARD_MIB)
        return ""

    # ---- load ----

    @property
    def load_s(self) -> float:
        return self.switches.load_s or self.machine.load_s * self.machine.rng.uniform(0.9, 1.15)

    def run_load(self, steps: list[Step]) -> None:
        """Each step at its part of the load. A load that hangs stops before the last third."""
        load_s = self.load_s
        for part, do in steps:
            if self.switches.load_hang and part > 0.66:
                return
            self.later(load_s * part, do)

    def bind(self) -> bool:
        """Takes the port; False when somebody else has it."""
        if self.machine.processes.holder_of(self.port) not in (None, self.main):
            return False
        self.main.ports[self.port] = self.api.host
        self.main.serves = self
        return True

    # ---- requests ----

    def http(self, request: Request) -> Reply:
        if self.main.state in ("T", "D"):
            return Reply(failed=28)
        reply = self.api.answer(request, self._generate)
        if not reply.failed and not self.over:
            phrase = HTTPStatus(reply.status).phrase
            client = f"127.0.0.1:{32768 + self.machine.rng.randrange(28000)}"
            self.say(f'INFO:     {client} - "{request.method} {request.path} HTTP/1.1" {reply.status} {phrase}')
        return reply

    def _generate(self, tokens: int) -> int | Reply:
        """Tokens that came, or what happened instead."""
        first, self.generations = self.generations == 0, self.generations + 1
        if self.switches.hang or any(rank.state in ("T", "D") for rank in self.ranks):
            return Reply(failed=28)
        if (first and self.crash_first) or 0 < self.switches.crash_above < tokens:
            return self.crash_on_request()
        return tokens if self.switches.tokens is None else self.switches.tokens

    def crash_on_request(self) -> Reply:
        self.crash(f"{self.swallowed}: 'EAGLEWorker' object has no attribute 'draft_attn_backend'")
        return Reply(failed=56)

    # ---- end ----

    def end_tree(self, code: int, status: int) -> None:
        """Everything below the launcher is killed, then the launcher ends so."""
        self.over = True
        processes = self.machine.processes
        for process in reversed(processes.tree(self.main)[1:]):
            processes.signal(process, "KILL")
        processes.end(self.main, code, status)

    def leave(self, exit_status: int) -> None:
        self.end_tree(EXITED, exit_status)

    def die(self) -> None:
        """As an engine that kills its own tree, itself included."""
        self.end_tree(KILLED, 9)


def _out_of_memory(want_mib: int, free_mib: int, total_mib: int) -> str:
    """torch's own words, which always speak of GPU 0."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {want_mib / 1024:.2f} GiB. GPU 0 has a "
        f"total capacity of {total_mib / 1024:.2f} GiB of which {free_mib / 1024:.2f} GiB is free."
    )
