"""How checkpoints keep weights that are quantized already: a module a scheme, exposing SCHEME."""
