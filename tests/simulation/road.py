"""The road to a simulated host, with what can go wrong between: cut, slow, cut short. Time is the loop's own.

What was sent has its effect on the host whether or not the sender still waits (a cancelled command goes on there).
Everything that passes is told to the witnesses: when it is sent, just before and just after its effect, and when its
sender has the answer or gives up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from daemon.domain.errors import TransportError
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.sim.host import SimHost
from daemon.ssh.argv import HELPER_PATH, Finished, helper_refusal

CONNECT_S = 10.0
BY_PERSON: ContextVar[bool] = ContextVar("by_person", default=False)  # set around what a person asks the daemon for
FORGOTTEN = frozenset({"nonce"})


@dataclass(slots=True)
class Call:
    """One command on its way. `run` numbers the daemon that sent it; `outcome` is "" while its sender waits.

    `by_person`: it is part of what a person asked for just now, not of a pass.
    """

    number: int
    run: int
    host: str
    verb: str
    lines: tuple[tuple[str, str], ...]
    body: bytes
    sent_s: float
    arrived_s: float | None = None
    exit_status: int | None = None
    answer: bytes = b""
    returned_s: float | None = None
    outcome: str = ""
    by_person: bool = False

    def value(self, key: str) -> str:
        """The first line of that name, "" when there is none."""
        return next((value for name, value in self.lines if name == key), "")


class Witness(Protocol):
    """Told of every call; sees the hosts themselves at the moments between."""

    def sent(self, call: Call) -> None: ...
    def before(self, call: Call) -> None: ...
    def after(self, call: Call) -> None: ...
    def returned(self, call: Call) -> None: ...


@dataclass(slots=True)
class Link:
    """The way to one host now. `cuts` counts the reasons why it is down; of its answers the share `truncates` arrives
    cut short, though they seem to have ended."""

    cuts: int = 0
    slow_s: float = 0.0
    truncates: float = 0.0


@dataclass(slots=True)
class Traffic:
    """What all roads of a run share: the hosts and their links, the witnesses, and dice of their own."""

    hosts: dict[str, SimHost]
    dice: random.Random
    links: dict[str, Link] = field(default_factory=dict)
    witnesses: list[Witness] = field(default_factory=list)
    run: int = 0
    count: int = 0

    def link(self, host: str) -> Link:
        return self.links.setdefault(host, Link())

    def new(self, host: str, argv: Sequence[str], stdin: bytes, now_s: float) -> Call:
        self.count += 1
        lines, body = _request(stdin) if argv[0] == HELPER_PATH else ((), b"")
        verb = argv[1] if argv[0] == HELPER_PATH else argv[3]
        return Call(self.count, self.run, host, verb, lines, body, now_s, by_person=BY_PERSON.get())

    def tell(self, moment: str, call: Call) -> None:
        for witness in self.witnesses:
            getattr(witness, moment)(call)


class SimRoads:
    """The pool, as the controller sees it."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._closed = False

    def road(self, host: str, spec: HostSpec) -> SimRoad:
        if self._closed:
            raise TransportError(Reason.TRANSPORT_LOST, f"{host}: the pool of roads is closed")
        return SimRoad(host, self._traffic)

    def forget(self, host: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        self._closed = True


class SimRoad:
    """`daemon.ssh.Road` to one simulated host."""

    def __init__(self, host: str, traffic: Traffic) -> None:
        self._host = host
        self._traffic = traffic

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        done = await self.run((HELPER_PATH, verb), stdin, timeout_s)
        if (refused := helper_refusal(done)) is not None:
            raise TransportError(*refused)
        return done.stdout

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        loop = asyncio.get_running_loop()
        call = self._traffic.new(self._host, argv, stdin, loop.time())
        self._traffic.tell("sent", call)
        try:
            async with asyncio.timeout(timeout_s):
                done = await self._passed(call, argv, stdin)
            call.outcome = call.outcome or "whole"
            return done
        except TimeoutError:
            call.outcome = "timed out"
            raise TransportError(Reason.TRANSPORT_LOST, f"{argv[-1]}: not in time", maybe_done=True) from None
        except TransportError as lost:
            call.outcome = f"lost: {lost.message}"
            raise
        finally:
            call.outcome = call.outcome or "given up"
            call.returned_s = loop.time()
            self._traffic.tell("returned", call)

    async def close(self) -> None:
        """Nothing is kept."""

    async def _passed(self, call: Call, argv: Sequence[str], stdin: bytes) -> Finished:
        """There and back; cut short or lost on either way when the link is cut at that moment."""
        link, dice, host = self._traffic.link(self._host), self._traffic.dice, self._traffic.hosts[self._host]
        host.advance()
        if link.cuts or not host.up:
            await asyncio.sleep(dice.choice((0.001, CONNECT_S)))
            raise TransportError(Reason.UNREACHABLE, "no way there")
        answered: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        _Passage(self._traffic, call, argv, stdin, answered).leave()
        done = await answered
        if dice.random() < link.truncates:
            call.outcome = "cut short"
            return Finished(done.exit_status, done.stdout[: int(len(done.stdout) * dice.random())], done.stderr)
        return done


@dataclass(slots=True)
class _Passage:
    """One command's way to the host and back, which goes on by itself."""

    traffic: Traffic
    call: Call
    argv: Sequence[str]
    stdin: bytes
    answered: asyncio.Future[Finished]

    def leave(self) -> None:
        asyncio.get_running_loop().call_later(self._way_s(), self._arrive)

    def _arrive(self) -> None:
        call, loop = self.call, asyncio.get_running_loop()
        if self._lost("on the way there"):
            return
        call.arrived_s = loop.time()
        self.traffic.tell("before", call)
        answer = self.traffic.hosts[call.host].answer(self.argv, self.stdin)
        call.exit_status, call.answer = answer.exit_status, answer.stdout
        self.traffic.tell("after", call)
        done = Finished(answer.exit_status, answer.stdout, answer.stderr)
        loop.call_later(answer.took_s + self._way_s(), self._return, done)

    def _return(self, done: Finished) -> None:
        if not self._lost("on the way back") and not self.answered.done():
            self.answered.set_result(done)

    def _lost(self, where: str) -> bool:
        """Cut just now, or the host is down: the sender hears of it after its keepalive."""
        host = self.traffic.hosts[self.call.host]
        host.advance()
        if host.up and not self.traffic.link(self.call.host).cuts:
            return False
        error = TransportError(Reason.TRANSPORT_LOST, where, maybe_done=True)
        asyncio.get_running_loop().call_later(self.traffic.dice.uniform(0.1, 15.0), self._fail, error)
        return True

    def _fail(self, error: TransportError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def _way_s(self) -> float:
        dice, slow_s = self.traffic.dice, self.traffic.link(self.call.host).slow_s
        return dice.uniform(0.002, 0.03) + (dice.uniform(0.0, slow_s) if slow_s else 0.0)


def _request(stdin: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """The lines of a verb's request without its nonce, and what follows them."""
    head, _, body = stdin.partition(b"\n.\n")
    pairs = (line.partition(" ") for line in head.decode("utf-8", "replace").split("\n"))
    return tuple((key, value) for key, _, value in pairs if key not in FORGOTTEN), body
