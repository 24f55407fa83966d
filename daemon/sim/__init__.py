"""A simulated fleet: hosts as state machines that print what real tools and the real helper print.

Imports nothing of the rest of Stoker: the two agree through text alone. Used by `stoker demo` and the simulation tests.
"""
