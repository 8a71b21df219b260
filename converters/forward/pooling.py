"""What models of embeddings and classifiers are used for: one vector, or scores, of a whole text.

Definition: llama.cpp `llm_graph_context::build_pooling` and `build_dense_out`; sentence-transformers' Pooling, Dense
and Normalize; transformers' `…ForSequenceClassification`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.model import Model, meaning, silu
from ggferry.support.heavy import np, torch

if TYPE_CHECKING:
    from torch import Tensor

MEAN, FIRST, LAST, RANK = 1, 2, 3, 4
"""llama.cpp's LLAMA_POOLING_TYPE_…"""
SHARED = ("qwen3", "qwen3vl")
"""Architectures of whose classifiers' scores llama.cpp gives the shares of one (`build_pooling`)."""
ANSWERS = ("answer_yes", "answer_no")
"""Of a reranker in its source's form, the tokens whose logits are the scores."""
CLASSIFIER_ACTIVATIONS = {
    "tanh": lambda x: torch.tanh(x),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "silu": silu,
}


def pooled(model: Model, states: Tensor, unit: bool = True) -> Tensor | None:
    """Return the vector, or a classifier's scores, float32 `(n,)`, of a text with these states.

    `states` are those of the last block, `(tokens, n_embd)`; the vector has unit length unless `unit` is False. None
    where nothing says how they are pooled.
    """
    kind = model.sizes.get("pooling") or 0
    if kind == RANK:
        return _scores(model, _one(states, _of_classifier(model)))[0]
    if not kind and model.has("dense_2"):
        kind = MEAN  # a matrix of each token's state (ColBERT): the mean of what it makes is what it makes of the mean
    if kind not in (MEAN, FIRST, LAST):
        return None
    vector = _one(states, kind)
    for name in ("dense_2", "dense_3"):
        vector = model.linear(name, vector) if model.has(name) else vector
    return torch.nn.functional.normalize(vector[0], dim=-1) if unit else vector[0]


def shares(scores: Any) -> Any:
    """Return the softmax of scores, numpy."""
    odds = np.exp(scores - scores.max())
    return odds / odds.sum()


def _one(states: Tensor, kind: int) -> Tensor:
    """Return the states as one row."""
    return states.mean(0, keepdim=True) if kind == MEAN else states[:1] if kind == FIRST else states[-1:]


def _of_classifier(model: Model) -> int:
    """Return how the states of a text are pooled for its classifier."""
    return model.sizes.get("classifier_pooling") or (LAST if model.sizes.get("causal", True) else FIRST)


def _scores(model: Model, x: Tensor) -> Tensor:
    if model.has("cls"):
        name = model.sizes.get("classifier_activation") or model.recipe.classifier
        x = meaning("a classifier's activation", name, CLASSIFIER_ACTIVATIONS)(model.linear("cls", x))
        x = model.norm("cls.norm", x) if model.has("cls.norm") else x
    if answers := [model.sizes[name] for name in ANSWERS if name in model.sizes]:
        return x @ model.weights.rows("cls.output.weight", answers).T  # of the output as the source has it
    return model.linear("cls.output", x) if model.has("cls.output") else x
