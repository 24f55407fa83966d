"""The reference host is made once a run; the table is printed when all is measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.figures import Figures
from tests.bench.stage import Stage
from tests.hosts.conftest import host_pool  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    found = Figures()
    yield found
    print(f"\n\n{found.table()}\n")


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(request.getfixturevalue("host_pool"), tmp_path_factory.mktemp("bench"))
    yield made
    made.end()
