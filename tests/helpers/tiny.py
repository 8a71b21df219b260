"""What a tiny random model of transformers is described by, and what many of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 328
TOKENS = [5, 17, 42, 99, 3, 120, 77, 200, 9, 250, 64, 31, 180, 11, 150, 222, 301, 8]
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
}
ROPE = {"rope_theta": 5000.0}


@dataclass(frozen=True)
class Tiny:
    """`model`: prefix of transformers' class names (…Config, …ForCausalLM or what `head` says). `old`: keys of
    config.json as transformers 4 wrote them, which take the place of `rope_parameters`. `attention`: transformers'
    implementation that computes what the model is. `outer`: the configuration around the text model's, where it also
    sees or hears. `whole`: the name of the class, where it is another."""

    model: str
    config: Mapping[str, Any]
    old: Mapping[str, Any] = field(default_factory=dict)
    head: str = "ForCausalLM"
    attention: str = "eager"
    outer: Mapping[str, Any] = field(default_factory=dict)
    whole: str = ""

    @property
    def cls(self) -> str:
        """The name of its class."""
        return self.whole or f"{self.model}{self.head}"
