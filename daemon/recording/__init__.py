"""A look kept as a file, and read back. Pure: no host, no daemon, no clock.

`form` is the file's shape, `keep` makes one of an answer with its secrets taken out, `simple` turns what people write
by hand into what the helper prints, and `answer` gives the reader of looks the whole. Called by `daemon.by_hand` and by
`daemon.replay`.
"""
