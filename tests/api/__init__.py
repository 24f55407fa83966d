"""Tests of `api`, over ASGI and a real store."""
