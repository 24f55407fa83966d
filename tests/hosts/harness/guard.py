"""Outlives a test run that was killed: waits for the end of its standard input, then takes down what was left."""

from __future__ import annotations

import signal
import sys

from harness import slots

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
slots.reap()
