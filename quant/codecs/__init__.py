"""One module for each family of block types, each exposing `CODECS`."""
