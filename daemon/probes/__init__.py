"""The text of host tools, as `stoker-host` brings it, made into observations. Pure: no clock, no I/O, no guesses."""
