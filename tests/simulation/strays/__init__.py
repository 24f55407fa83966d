"""Seeded runs with random mixtures of strays and their foreign look-alikes: the hidden truth against what is done."""
