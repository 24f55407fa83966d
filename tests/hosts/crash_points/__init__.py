"""A daemon that notes each command to a host and each write of its store, and ends itself at the one it is told."""
