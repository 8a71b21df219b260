"""The commands of the service: serve, and remote, its client."""
