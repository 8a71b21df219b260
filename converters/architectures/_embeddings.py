"""Table pieces of models that make one vector, or scores, of a text: how it is pooled, and what classifies it.

Sources: sentence-transformers' modules; transformers' `…ForSequenceClassification`; llama.cpp `llama-graph.cpp`
(`build_pooling`), which applies the tensors `cls`, `cls.norm` and `cls.output` to the pooled states.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures._tensors import linear
from ggferry.converters.schema.architecture import Default, Dialect, Drop, From, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.order import Chosen
from ggferry.converters.schema.roles import Roles

_POOL = "sentence_transformers_pooling."
RANK = 4
"""llama.cpp's LLAMA_POOLING_TYPE_RANK: the classifier's scores in place of a vector."""

# How sentence-transformers makes one vector of a text: its Pooling module's configuration.
MODES = tuple(
    HParam(f"pool_{name}", None, common.BOOL, {"hf": f"{_POOL}pooling_mode_{key}"}, required=False)
    for name, key in (
        ("mean", "mean_tokens"), ("cls", "cls_token"), ("lasttoken", "lasttoken"), ("max", "max_tokens"),
        ("mean_sqrt_len", "mean_sqrt_len_tokens"), ("weightedmean", "weightedmean_tokens"),
    )
)
POOLING = (*MODES, HParam("pooling", "pooling_type", derive="@pooling_type", required=False))
# A decoder without its output gives states: 0 says so, one for each token, where nothing says how texts are pooled.
DECODER_POOLING = (
    *MODES, HParam("without_output", None, common.BOOL, required=False),
    HParam("pooling", "pooling_type", derive="@pooling_type", required=False,
           defaults=(Default(0, "there is no output: the states are the result", when="without_output == 1"),)),
)
# The matrices behind the pooling, by their places in modules.json: one or two, without a function behind them.
DENSE = (
    HParam("modules", None, common.STRING, {"hf": "sentence_transformers_modules"}, required=False,
           words={one: one for one in (
               "Transformer Pooling", "Transformer Pooling Normalize", "Transformer Pooling Dense",
               "Transformer Pooling Dense Normalize", "Transformer Pooling Dense Dense",
               "Transformer Pooling Dense Dense Normalize", "Transformer Dense", "Transformer",
           )}),
    *(
        HParam(f"dense_{number}_{member}", None, kind, {"hf": f"sentence_transformers_dense.{number - 2}.{key}"},
               words=words, required=False)
        for number in (2, 3)
        for member, key, kind, words in (
            ("activation", "activation_function", common.STRING,
             dict.fromkeys(("torch.nn.modules.linear.Identity", "torch.nn.Identity"), "none")),
            ("residual", "use_residual", common.BOOL, {False: False}),
        )
    ),
)
TWO_DENSE = tuple(
    HParam(f"dense_{number}_{side}", f"dense_{number}_feat_{side}",
           fields={"hf": f"sentence_transformers_dense.{number - 2}.{side}_features"}, required=False,
           check=f"dense_{number}_{side} == n_embd" if (number, side) in ((2, "in"), (3, "out")) else "")
    for number in (2, 3) for side in ("in", "out")
)


def dense(number: int, rows: str, columns: str, *, bias: bool = False) -> tuple[Role, ...]:
    """Return the matrix `dense_{number}` behind the pooling, and its bias, which a model may lack."""
    source = f"sentence_transformers_dense.{number - 2}.linear"
    found = linear(f"dense_{number}", f"{rows} {columns}", source, bias=bias)
    return tuple(replace(role, optional=True) for role in found)


IGNORED_KEYS = IgnoredKey(f"{_POOL}word_embedding_dimension {_POOL}include_prompt", "pooling takes what there is")


def labels(values: Values) -> tuple[str, ...] | None:
    """Return the names of a classifier's scores; where none are stated, transformers' own."""
    count, declared = values.get("n_labels"), values.get("labels_stated")
    if count is None:
        return None
    if declared is not None and len(declared) != count:
        raise ValueError(f"{len(declared)} labels for a classifier of {count} scores")
    return tuple(f"LABEL_{number}" for number in range(count)) if declared is None else declared


# A classifier's tensors show how many labels there are.
LABELS = (
    HParam("n_labels", None, required=False),
    HParam("classifies", None, common.BOOL, required=False),
    HParam("labels_stated", None, common.STRING, {"hf": "id2label"}, required=False, length="n_labels"),
    HParam("labels", "classifier.output_labels", common.STRING, derive=labels, required=False, length="n_labels"),
)


def classifier(dense: str, output: str, *, dense_bias: bool = True) -> tuple[Role, ...]:
    """Return the classifier: a square layer ('' for none), an activation, and one row a label.

    `dense`, `output`: the source's names.
    """
    first = linear("cls", "n_embd n_embd", dense, bias=dense_bias, when="classifies == 1") if dense else ()
    return (*first, *linear("cls.output", "n_labels n_embd", output, bias=True, when="classifies == 1"))


def language_heads(*names: str) -> tuple[Drop, ...]:
    """Return the drops of a head that predicts masked tokens, by names of its tensors."""
    return tuple(Drop(name, "the head that predicts masked tokens, which embeddings do not use") for name in names)


# --- rerankers that answer "yes" or "no" ---------------------------------------------------------------------

ANSWERS = ("yes", "no")
RERANKERS = {False: "reranker", True: "reranker, tied"}
"""Dialects by whether the output matrix is the token embedding: `converters.reranking` chooses them, no class does."""
ANSWER_ROWS = tuple(HParam(f"answer_{answer}", None, required=False) for answer in ANSWERS)
"""The ids of the two tokens, which are rows of the output matrix."""
_CHOSEN = Chosen(tuple(row.name for row in ANSWER_ROWS))


def reranking(table: Sequence[Role]) -> Roles:
    """Return a decoder's table with columns for `RERANKERS`: as 'hf', but two rows of the output matrix classify."""
    output = {False: "lm_head.weight", True: "model.embed_tokens.weight"}

    def sources(role: Role) -> dict[str, From]:
        if role.name == "cls.output.weight":
            return {RERANKERS[tied]: From((name,), _CHOSEN) for tied, name in output.items()}
        kept = "hf" in role.sources and role.name != "output.weight"
        return dict.fromkeys(RERANKERS.values(), role.sources["hf"]) if kept else {}

    return Roles(lambda: tuple(replace(role, sources={**role.sources, **sources(role)}) for role in table))


def rerankers(dialect: Dialect) -> tuple[Dialect, ...]:
    """Return the dialects of the same model where the states of the last token are asked for "yes" and "no" alone."""
    variant = replace(
        dialect, fields=dialect.source, classes=(), types=(),
        fixed={
            **dialect.fixed, "tied": True, "classifies": True, "pooling": RANK, "n_labels": len(ANSWERS),
            "labels_stated": ANSWERS,
        },
        ignored_keys=(
            *dialect.ignored_keys,
            IgnoredKey("tie_word_embeddings", "two rows of the output are kept, whichever matrix it is", (False, True)),
        ),
    )
    own = tuple(drop for drop in dialect.drops if drop is not common.DROP_TIED)
    return tuple(
        replace(variant, name=name, names=name, drops=variant.drops if tied else own) for tied,
        name in RERANKERS.items()
    )
