"""Real cards: what no test here can show, tried by hand on a machine that has them. `strays.py` says how."""
