"""Figures beside their targets, printed by `make bench`. A gross miss fails; a miss is only shown."""
