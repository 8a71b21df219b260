"""One module a container, each exposing `SPEC: Reader`. Readers never import each other."""
