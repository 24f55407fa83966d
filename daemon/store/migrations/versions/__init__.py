"""The revisions, oldest first. Each is frozen once it was released."""
