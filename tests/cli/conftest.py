"""One served API a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_stage import Daemon, served


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with served(tmp_path / "data") as made:
        yield made
