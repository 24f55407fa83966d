"""The nouns: frozen values without I/O, shared by every floor above."""
