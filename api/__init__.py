"""The edge people meet: REST API, client and command line. Imports `daemon`; `daemon` never imports this."""
