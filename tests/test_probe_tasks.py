"""What a probe meets never ends the daemon: hostile answers, a store that fails, a road that raises what it may not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.controller import Controller
from daemon.declared import record_of
from daemon.domain.observation import ProcessId
from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.planner.clearing import ServeQuestion
from daemon.planner.world import Desired, StrayFact
from daemon.ready import Prober, Verdict
from daemon.settings import Settings
from daemon.store import Store
from daemon.store.rows import StoredInstance
from daemon.workqueue import WorkQueue
from tests.probes.reference import frame
from tests.test_ready import INVOCATION
from tests.test_ready import desired as placed
from tests.test_reconcile import NOON

pytestmark = pytest.mark.main_job

NESTED = b"[" * 60_000


class Answers:
    """A host on whose port somebody gives that body to everything."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        nonce = stdin.split(b"\n", 1)[0].removeprefix(b"nonce ").decode()
        unit = b"InvocationID=\nMainPID=0\nControlGroup=\nActiveState=inactive\n"
        return frame(
            {
                "before": (0, unit), "listeners": (0, b""), "response": (0, b"200\n" + self._body), "peer": (0, b""),
                "cgroups": (0, b""), "main": (1, b""), "mark": (1, b""), "after": (0, unit),
            },
            verb,
            nonce=nonce,
        )  # fmt: skip


@pytest.mark.parametrize(
    "body", [NESTED, b'{"data": ' + NESTED, b'{"data": [{"id": "\\ud800\\n\\u0000"}]}', b'{"data": [{"id": 1e999}]}']
)
async def test_no_answer_of_a_stray_makes_a_serve_probe_raise(body: bytes) -> None:
    assert await Prober(Answers(body)).serves((9000,), 1.0) is True


async def test_a_probe_that_raises_ends_neither_its_siblings_nor_the_daemon(tmp_path: Path) -> None:
    async def breaks() -> None:
        raise RecursionError("brackets")

    async with Store.open(tmp_path / "stoker.db") as store:
        controller = Controller(store, Settings(data=tmp_path))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(controller._edge("a", breaks()))
        (said,) = await store.events("Host", "a")
        assert said.message == "RecursionError: brackets"
        await store.close()
        async with asyncio.timeout(10):
            await controller._edge("a", breaks())


async def test_a_probe_that_is_cancelled_stays_cancelled(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "stoker.db") as store:
        controller = Controller(store, Settings(data=tmp_path))
        task = asyncio.ensure_future(controller._edge("a", asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Says(Prober):
    """A prober of verdicts that were given beforehand."""

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__(Answers(b""))
        self._verdicts = list(verdicts)

    async def generate(self, desired: Desired, invocation: str) -> Verdict:
        return self._verdicts.pop(0)

    async def effective(self, desired: Desired, invocation: str) -> None:
        return None


OK: Verdict = (True, Reason.GENERATED, "")
LATE: Verdict = (False, Reason.GENERATION_TIMEOUT, "exit status 28")
OTHER: Verdict = (False, Reason.STALE_PROCESS_SERVING, "pid 7")
CUT: Verdict = (False, Reason.TRANSPORT_LOST, "")


@pytest.mark.parametrize(
    ("verdicts", "silent"),
    [
        ([OK, LATE], False),  # one slow answer is none
        ([OK, LATE, LATE], True),
        ([OK, OTHER], True),
        ([OK, LATE, LATE, OK], False),
        ([OK, CUT, CUT, CUT], False),  # not known
    ],
)
async def test_the_next_daemon_knows_who_did_not_generate_any_more(
    tmp_path: Path, verdicts: list[Verdict], silent: bool
) -> None:
    desired = placed()
    async with Store.open(tmp_path / "stoker.db") as store:
        said = desired.declared.spec.model_dump(mode="json")
        await store.put("ServingSpec", "m", said, actor="t", now=NOON)
        uid = (await store.get("ServingSpec", "m")).uid
        desired = replace(desired, declared=replace(desired.declared, spec_uid=uid))
        row = StoredInstance(spec_uid=uid, role="server", host="a", unit=desired.unit, path=desired.path)
        await store.change_instance(uid, "server", "a", lambda one: one, new=row)
        controller, memory, prober = Controller(store, Settings(data=tmp_path)), HostMemory(), Says(*verdicts)
        for _ in verdicts:
            await controller._inquiries.generate("a", memory, prober, desired, INVOCATION)
        (found,) = await store.instances("a", uid)
    record = record_of(found)
    assert record.ready_invocation == INVOCATION
    assert (record.silent_invocation == INVOCATION) is silent


class Port:
    """A host on whose port processes listen at these addresses, (address in hexadecimal, pid, whether it serves)."""

    def __init__(self, *listening: tuple[str, str, bool]) -> None:
        self._rows = "".join(f"9000 {place} {100 + at}\n" for at, (_, place, _) in enumerate(listening)).encode()
        self._serves = {address: serves for address, _, serves in listening}
        self.asked: list[str] = []

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        lines = dict(line.split(" ", 1) for line in stdin.decode().split("\n.\n")[0].split("\n"))
        address = lines["address"]
        self.asked.append(address)
        reached = address if address in self._serves else "*" if "*" in self._serves and ":" not in address else ""
        response = self.answer(reached)
        unit = b"InvocationID=\nMainPID=0\nControlGroup=\nActiveState=inactive\n"
        return frame(
            {
                "before": (0, unit), "listeners": (0, self._rows), "response": response, "peer": (0, b""),
                "cgroups": (0, b""), "main": (1, b""), "mark": (1, b""), "after": (0, unit),
            },
            verb,
            nonce=lines["nonce"],
        )  # fmt: skip

    def answer(self, reached: str) -> tuple[int, bytes]:
        return (7, b"") if not reached else (0, b"200\n{}") if self._serves[reached] else (28, b"")


ANY, NEAR, FAR = ("*", "00000000"), ("127.0.0.1", "0100007F"), ("192.0.2.1", "010200C0")


@pytest.mark.strays
@pytest.mark.parametrize(
    ("listening", "serves"),
    [
        ([(*NEAR, False)], False),
        ([(*NEAR, True)], True),
        ([(*FAR, True)], True),  # nothing answers at loopback
        ([(*NEAR, False), (*FAR, True)], True),
        ([(*NEAR, False), (*ANY, True)], True),  # the more exact address wins at 127.0.0.1
        ([(*NEAR, False), (*FAR, False)], False),
        ([(*NEAR, False), (*NEAR, False)], None),  # SO_REUSEPORT: who answered there is the kernel's dice
        ([], False),
    ],
)
async def test_whether_a_port_serves_is_asked_at_each_address_somebody_listens_on(
    listening: list[tuple[str, str, bool]], serves: bool | None
) -> None:
    assert await Prober(Port(*listening)).serves((9000,), 1.0) is serves


class Tool(Port):
    """A host on whose port somebody listens, and whose tool for the request ends so."""

    def __init__(self, response: tuple[int, bytes]) -> None:
        super().__init__((*NEAR, False))
        self._response = response

    def answer(self, reached: str) -> tuple[int, bytes]:
        return self._response


@pytest.mark.strays
@pytest.mark.parametrize(
    ("response", "serves"),
    [
        ((28, b""), False),  # silent
        ((56, b""), False),  # no HTTP
        ((0, b"404\n"), False),
        ((7, b""), None),  # refused, though somebody listens
        ((127, b""), None),  # neither Python nor curl there
        ((1, b""), None),  # the client itself broke
        ((126, b""), None),
        ((139, b""), None),
        ((27, b""), None),  # no room for the answer
        ((23, b""), None),
        ((0, b""), None),  # cut on the way
        ((0, b"20"), None),
    ],
)
async def test_a_request_that_could_not_be_made_is_no_answer(response: tuple[int, bytes], serves: bool | None) -> None:
    """Law 1: what was not asked does not say that it does not serve, and nobody is ended for it."""
    assert await Prober(Tool(response)).serves((9000,), 1.0) is serves


class Api(Port):
    """A host on whose port a server answers with one status for its models and another one for a generation."""

    def __init__(self, models: int, made: int) -> None:
        super().__init__((*NEAR, True))
        self._models, self._made, self._generation = models, made, False

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        self._generation = b"\nmethod POST\n" in stdin
        return await super().call(verb, stdin, timeout_s)

    def answer(self, reached: str) -> tuple[int, bytes]:
        return 0, b"%d\n{}" % (self._made if self._generation else self._models)


@pytest.mark.strays
@pytest.mark.parametrize(
    ("models", "made", "serves"),
    [
        (200, 200, True),
        (200, 404, True),  # a server of embeddings alone
        (200, 400, True),  # a chat alone, or another name for its model
        (200, 429, True),  # full
        (200, 500, False),  # its engine is dead
        (404, 404, False),  # HTTP, and no engine's
        (503, 503, None),  # loads, is full, or ends
        (200, 503, None),
    ],
)
async def test_a_server_that_answers_but_not_to_this_question_is_alive(
    models: int, made: int, serves: bool | None
) -> None:
    assert await Prober(Api(models, made)).serves((9000,), 1.0) is serves


@pytest.mark.strays
@pytest.mark.parametrize(("listening", "looks"), [([(*NEAR, True)], 1), ([(*NEAR, False), (*NEAR, False)], 0)])
async def test_an_answer_makes_a_look_at_once_and_none_makes_no_loop(
    tmp_path: Path, listening: list[tuple[str, str, bool]], looks: int
) -> None:
    """Without an answer the next pass asks again: were it to come at once, it would go round without end."""
    stray = ProcessId(100, 7)
    async with Store.open(tmp_path / "stoker.db") as store:
        controller = Controller(store, Settings(data=tmp_path))
        controller._queue = WorkQueue(asyncio.get_running_loop(), lambda: 0.5)
        memory = HostMemory(strays={stray: StrayFact(0.0)}, asking={stray})
        question = ServeQuestion(stray, (9000,), marked=True)
        await controller._inquiries.ask_serves("a", memory, Prober(Port(*listening)), question)
        assert len(controller._queue) == looks
        assert memory.asking == set()
        assert memory.strays[stray].serves is (True if looks else None)
