"""One module a kind of file beside a model that holds its tokenizer, each exposing `SOURCE`."""
