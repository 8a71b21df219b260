"""How checkpoints keep weights that are quantised already: a module a scheme, exposing SCHEME."""
