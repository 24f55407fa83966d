"""Stoker's daemon: compares declared serving specs with what hosts show, and converges."""

__version__ = "0.1.0"
