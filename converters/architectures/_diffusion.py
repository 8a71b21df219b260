"""Language models that fill in masked tokens, in any order: every token sees every other one.

Sources: llama.cpp `src/models/{dream,llada,llada-moe,rnd1}.cpp`, `conversion/{dream,llada,qwen}.py`,
`examples/diffusion`.
"""

from ggferry.converters.schema.architecture import Caveat, Default, HParam, IgnoredKey
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL
CAUSAL = HParam(
    "causal", "attention.causal", BOOL, absent=True,
    defaults=(Default(False, "the family fills in masked tokens", dialect="hf"),),
)
# Whether the logits of a place are of the token behind it, as in the model that Dream came of.
IN_PLACE = HParam(
    "shift_logits", "diffusion.shift_logits", BOOL, global_key=True, required=False,
    defaults=(Default(False, "logits are of the masked token itself", dialect="hf"),),
)
MASKED = Caveat(
    "causal == 0",
    "a diffusion language model: every token sees all others, and programs must fill in masked tokens instead of "
    "continuing (llama.cpp: llama-diffusion-cli)",
)
IGNORED_KEYS = IgnoredKey("mask_token_id", "the tokenizer has it")
NO_WINDOWS = (
    IgnoredKey("use_sliding_window", "never", (False,)),
    IgnoredKey("sliding_window max_window_layers layer_types", "no block has a window"),
)
