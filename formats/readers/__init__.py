"""One module for each container, each exposing `SPEC: Reader`. Readers never import each other."""
