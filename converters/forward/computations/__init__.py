"""One module a kind of model: how its blocks make logits of token ids. Architecture tables name them."""
