"""The routes, one file a resource. They read requests, ask admission and the store, and never decide about a host."""
