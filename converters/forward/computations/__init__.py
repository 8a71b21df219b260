"""One module for each kind of model: how its blocks turn token ids into logits. Architecture tables name them."""
