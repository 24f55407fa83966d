"""systemd's D-Bus on a host, heard through the SSH connection: hints of which host to look at now, never the truth."""
