"""Mixers of tokens that carry a state along: convolutions, state spaces, delta nets, RWKV."""
