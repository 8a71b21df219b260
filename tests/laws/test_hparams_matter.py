"""Every key that is written is read back and changes what the forward pass computes, or is named here with the reason
why it need not: an hparam that nothing uses could be wrong without anybody seeing it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import GgferryError
from ggferry.formats.gguf.values import Value
from ggferry.formats.gguf.values import ValueType as T
from helpers.tiny_models import TINY, TOKENS, make, write
from helpers.unclassed import UNCLASSED, make_unclassed

IDLE = {
    "context_length": (".", "says how far the model was trained, not how it computes"),
    "n_deepstack_layers": ("qwen3vl", "there is no picture whose features would be added"),
    "deepstack_mapping": ("granite", "there is no picture whose features would be added"),
    "feed_forward_length": (
        "hunyuan moe|mellum|solar open|qwen.moe|qwen3(next|vlmoe)|minimax_m2|gpt-oss|mistral4|(falcon )?mamba|grok 1",
        "none is dense",
    ),
    "attention.layer_norm_epsilon": ("glm 5.3", "by so little no other tokens are chosen"),
    "attention.head_count": ("(falcon )?mamba", "there is no attention"),
    "hrm.prefix_lm": ("hrm", "nothing marks what is a prompt"),
    "attention.sliding_window": ("unlimited ocr", "of what was written, and a prompt is not"),
    "rope.scaling.type": (".*longrope", "the tensors of factors say the same"),
    "rope.dimension_sections": ("qwen|glm|paddleocr|hunyuan vl", "text has one axis of positions"),
    "full_attention_interval": ("qwen[34]", "the list of recurrent blocks says it, too"),
    "expert_feed_forward_length": ("youtu", "there are no experts, though llama.cpp asks how wide they are"),
    "router_logit_softcapping": ("grok 1", "0: there is no cap"),
    "rope.freq_base": ("granite hybrid|kimi linear", "nothing is turned by its position"),
    "expert_shared_count": ("nemotron-h|hunyuan moe|ernie4_5_moe|cohere2moe|ling 3", "its width says how large it is"),
    "use_parallel_residual": ("stablelm", "only the 12B has no norm before its feed-forward, and says true"),
}
CHOSEN = (
    "granite_swa listed",
    "opt gelu",
    "llama",
    "llama linear",
    "llama yarn",
    "llama longrope",
    "qwen2 window",
    "qwen2moe normed",
    "qwen3moe not normed",
    "phi3 longrope",
    "deepseek v2",
    "deepseek v2 groups",
    "gpt2",
    "gpt2 unscaled",
    "gptneox",
    "gptneox linear",
    "mpt clip",
    "mpt scale",
    "falcon 40b",
    "falcon rw",
    "smollm3 otherwise",
    "olmo3 yarn",
    "exaone4 windows",
    "nemotron-h",
    "nemotron-h latent",
    "ernie4_5_moe",
    "ernie4_5_moe between",
    "llama4 chunks",
    "gemma4 keys as values",
    "gemma4 shared",
    "gemma4 experts",
    "gemma3n shared",
    "mimo2 otherwise",
    "chameleon swin",
)
"""Of families with several tiny models, those that use most keys; of every other it is the first."""
FIRST = {tiny.model: name for name, tiny in reversed(TINY.items())}
MODELS = (*CHOSEN, *(name for model, name in FIRST.items() if model not in {TINY[each].model for each in CHOSEN}))
pytestmark = pytest.mark.filterwarnings("ignore")


def altered(value: Value) -> list[Value]:
    """Other values the key could hold: a law holds if one of them is seen."""
    match value.type:
        case T.BOOL:
            others = [not value.data]
        case T.STRING:
            others = ["none"]
        case T.ARRAY:
            others = [tuple(not item for item in value.data)]
        case T.FLOAT32:
            others = [value.data * 1.5, value.data * 0.1]  # a cap twice as high need not cap anything
        case _:
            others = [value.data + 1, value.data * 4, value.data - 1]
    return [replace(value, data=other) for other in others]


QUICK = ("llama yarn", "gemma2", "command-r", "deepseek v3", "gpt2 unscaled", "falcon rw")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*MODELS, *UNCLASSED)]
)
def test_no_key_is_idle(name: str, tmp_path: Path) -> None:
    (make_unclassed if name in UNCLASSED else make)(name, tmp_path / "hf")
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    found = open_checkpoint(str(write(source, tmp_path / "x.gguf")))
    expected = forward(understand(found), TOKENS)

    def seen(key: str, value: Value) -> bool:
        try:
            other = understand(replace(found, metadata={**found.metadata, key: value}))
            return not np.array_equal(expected, forward(other, TOKENS))
        except GgferryError:
            return True

    prefix = f"{source.architecture.name}."
    keys = {key.removeprefix(prefix): value for key, value in found.metadata.items() if key.startswith(prefix)}
    idle = {key for key, value in keys.items() if not any(seen(prefix + key, other) for other in altered(value))}
    assert idle <= {key for key, (models, _) in IDLE.items() if re.match(models, name)}
