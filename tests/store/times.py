"""Times for the tests of the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after the start of the test."""
    return START + timedelta(seconds=seconds)
