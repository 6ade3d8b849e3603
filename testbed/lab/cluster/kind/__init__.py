"""The ``kind`` cluster: real kind, in Docker or Podman."""
