"""LLaMA that sees what follows, for embeddings (NVIDIA's llama-embed-nemotron). Sources: llama.cpp
`src/models/llama-embed.cpp`, `conversion/llama.py`; `llama`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _text_half as half
from ggferry.converters.architectures import llama
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless

SPEC = Architecture(
    name="llama-embed",
    display_name="LLaMA for embeddings",
    hf_classes=("LlamaBidirectionalModel",),
    hparams=(*llama.HPARAMS, encoder.BOTH_SIDES),
    roles=llama.ROLES,
    dialects={
        "hf": replace(
            half.headless(llama.HF)["headless"],
            name="hf",
            given={"tied": True, "causal": False, "without_output": True},
            remarks=llama.HF.remarks,
            harmless=(*llama.HF.harmless, embeddings.HARMLESS, Harmless("tie_word_embeddings", "there is no output")),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={**llama.SPEC.recipe, "rows": "states"},
)
