"""Tests of `api`'s command line, each in a process of its own."""
