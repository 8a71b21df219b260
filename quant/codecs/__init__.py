"""One module a family of block types, each exposing `CODECS`."""
