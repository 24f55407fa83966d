"""Decisions, all pure: what should run, who owns a process, what differs, what to do next, what to say.

`decide` in `plan` is the whole of it for one host; `reconcile` calls it once for each look.
"""
