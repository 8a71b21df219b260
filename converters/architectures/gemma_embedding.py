"""EmbeddingGemma: Gemma 3 that sees what follows; windows reach half of their width to either side.

Sources: transformers `modeling_gemma3.py` (`use_bidirectional_attention`); llama.cpp `src/models/gemma-embedding.cpp`,
`conversion/gemma.py`; `gemma3`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _gemma as gemma
from ggferry.converters.architectures import _text_half as half
from ggferry.converters.architectures import gemma3
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, Remark

_BIDIRECTIONAL = HParam(
    "bidirectional", None, common.BOOL, {"hf": "use_bidirectional_attention"}, words={True: True}, required=False
)
_OWN = {"bidirectional": _BIDIRECTIONAL}
# llama.cpp scales by the width of a head, whatever the file says.
_SCALED = Remark(
    "query_scalar != head_dim",
    "attention.scale={attn_scale}: written, but llama.cpp scales this architecture's scores by the width of a head",
    stops="llama.cpp",
)

SPEC = Architecture(
    name="gemma-embedding",
    display_name="EmbeddingGemma",
    hf_classes=("Gemma3TextModel",),
    hparams=(
        *(_OWN.get(hparam.name, hparam) for hparam in gemma3.HPARAMS), encoder.BOTH_SIDES, *embeddings.POOLING,
    ),
    roles=tuple(role for role in gemma3.ROLES if not role.name.startswith("output.")),
    dialects={
        "hf": Dialect(
            "hf",
            conventions=gemma.CONVENTIONS,
            drops=common.DROPS,
            given={"causal": False, "tied": True},
            renames=half.BARE,
            remarks=(*gemma.REMARKS, _SCALED),
            harmless=(common.UNBIASED, embeddings.HARMLESS),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={**gemma.RECIPE, "rows": "states"},
)  # fmt: skip
