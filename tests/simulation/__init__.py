"""Seeded runs of the whole daemon below the API on virtual time, over simulated hosts."""
