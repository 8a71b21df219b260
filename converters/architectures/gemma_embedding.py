"""EmbeddingGemma: Gemma 3 that sees what follows; windows reach half of their width to either side, and two matrices
widen and narrow the vector of a text.

Sources: transformers `modeling_gemma3.py` (`use_bidirectional_attention`); llama.cpp `src/models/gemma-embedding.cpp`,
`conversion/gemma.py`; `gemma3`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _gemma3 as shared
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam

_BIDIRECTIONAL = HParam(
    "bidirectional", None, common.BOOL, {"hf": "use_bidirectional_attention"}, words={True: True}, required=False
)
# The loader asks for a window, and for no cap of logits, of which there are none.
_WINDOW = HParam(
    "n_swa", "attention.sliding_window", fields={"hf": "sliding_window"}, check="0 < n_swa",
    defaults=(Default(4096, "transformers' default", dialect="hf"),),
)
_NO_CAP = HParam(
    "final_softcap", None, common.F32, {"hf": "final_logit_softcapping"}, words={None: None}, required=False
)
# llama.cpp scales by the width of a head, and the file cannot say otherwise.
_SCALAR = replace(gemma.QUERY_SCALAR, check="query_scalar == head_dim")
_OWN = {"bidirectional": _BIDIRECTIONAL, "n_swa": _WINDOW, "final_softcap": _NO_CAP, "query_scalar": _SCALAR}

SPEC = Architecture(
    name="gemma-embedding", runtimes=("llama.cpp",),
    display_name="EmbeddingGemma",
    hf_classes=("Gemma3TextModel",),
    hparams=(
        *(_OWN.get(hparam.name, hparam) for hparam in shared.HPARAMS if hparam.name != "attn_scale"),
        encoder.BOTH_SIDES,
        *embeddings.POOLING,
        *embeddings.DENSE,
        *embeddings.TWO_DENSE,
    ),
    roles=(
        *(role for role in shared.ROLES if not role.name.startswith("output.")),
        *embeddings.dense(2, "dense_2_out", "dense_2_in"),
        *embeddings.dense(3, "dense_3_out", "dense_3_in"),
    ),
    dialects=(
        Dialect(
            "hf",
            conventions=gemma.CONVENTIONS,
            drops=common.DROPS,
            fixed={"causal": False, "tied": True},
            renames=half.BARE,
            export_renames=tuple((table, written, "causal == 0") for written, table in half.BARE),
            caveats=(*gemma.CAVEATS, encoder.ONE_KIND, common.ERF, common.biased_output("gemma-embedding")),
            ignored_keys=(common.UNBIASED, gemma.PATTERN, embeddings.IGNORED_KEYS),
        ),
    ),
    recipe={**gemma.RECIPE, "rows": "states"},
)
