"""For every test: how long an example of a property takes says how busy the machine is, and nothing of the product."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")
