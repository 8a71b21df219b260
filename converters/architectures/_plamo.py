"""PLaMo 2 and 3: what their norms store, and which blocks of PLaMo 2 attend."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures._tensors import linear, tensor
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.values import ADD_ONE, Plus
from ggferry.formats.limits import MAX_LAYERS

BEHIND_MIXER, BEHIND_NETWORK = Plus(1 / 5), Plus(1 / 5**1.5)
"""What is added to the weights of the norms behind a branch (transformers' remote code, SGLang's `plamo3.py`)."""
DROPS = (common.DROP_TIED, common.DROP_BUFFERS)


def norms() -> tuple[Role, ...]:
    """Return the four norms of a block. Those behind a branch have names without '.weight', as llama.cpp reads them."""
    return (
        tensor("attn_norm.weight", "n_embd", "pre_mixer_norm.weight", ADD_ONE, f32=True),
        tensor("post_attention_norm", "n_embd", "post_mixer_norm.weight", BEHIND_MIXER, f32=True),
        tensor("ffn_norm.weight", "n_embd", "pre_mlp_norm.weight", ADD_ONE, f32=True),
        tensor("post_ffw_norm", "n_embd", "post_mlp_norm.weight", BEHIND_NETWORK, f32=True),
    )


def network() -> tuple[Role, ...]:
    """Return the feed-forward half: gate and up in one matrix."""
    return (
        *linear("ffn_up", "2*n_ff n_embd", "mlp.gate_up_proj"),
        *linear("ffn_down", "n_embd n_ff", "mlp.down_proj"),
    )


def attending(values: Values) -> tuple[bool, ...]:
    """Return which blocks attend: one of `mamba_step`, in its middle; in a very short model the last."""
    count, step = values["n_layer"], values["mamba_step"]
    if not 0 < count <= MAX_LAYERS or step < 2:
        raise ValueError(f"{count} blocks, of which one in {step} attends")
    if count <= step // 2:
        return tuple(n == count - 1 for n in range(count))
    return tuple(n % step == step // 2 for n in range(count))


def selection_rank(values: Values) -> int:
    """Return how wide the time step is before its projection: a sixteenth of the model, 64 at least."""
    return max(64, int(values["n_embd"]) // 16)
