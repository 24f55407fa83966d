"""What a probe meets never ends the daemon: hostile answers, a store that fails, a road that raises what it may not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemon.controller import Controller
from daemon.ready import Prober
from daemon.settings import Settings
from daemon.store import Store
from tests.probes.reference import frame

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
