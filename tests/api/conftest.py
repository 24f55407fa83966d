"""The application over a real store in a temporary folder, called over ASGI; only the hands are a stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from api.seams import Context
from daemon.store import Store
from tests.api.api_stage import NOW, TOKEN, Api, FakeHands
from tests.api.documented import hold


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "data" / "stoker.db") as opened:
        yield opened


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    hands = FakeHands()
    hands.look_into(store)
    context = Context(store=store, hands=hands, metrics=lambda: b"stoker_up 1\n", now=lambda: NOW, version="0.1.0")
    transport = httpx.ASGITransport(app=create_app(context, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}", "Stoker-Actor": "ada@console"}
    hooks = {"response": [hold]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://stoker", headers=headers, event_hooks=hooks
    ) as http:
        yield Api(http, store, hands)
