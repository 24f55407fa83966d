"""What engines want and say: spec to argv and unit text, log text to meaning. Pure.

`launch` and `unit` are read by the planner, `check` by admission, `failures` and `redact` by whoever shows evidence.
"""
