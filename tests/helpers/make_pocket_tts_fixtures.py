"""Make fixtures/pocket-tts/states.npz: what the publisher's own classes compute of the models of `tiny_pocket_tts.py`.

    pip install torch 'pocket-tts==4.0.1' blake3     # an environment of its own
    PYTHONPATH=tests python tests/helpers/make_pocket_tts_fixtures.py

The classes are made of a configuration as the package has it, and load the tensors by their published names. The states
are what the flow net reads, at every position: those of the last are also what `FlowLMModel.backbone` gives where sound
begins, after the rest of the text went before.
"""

from __future__ import annotations

import numpy as np
import torch
from pocket_tts.models.flow_lm import FlowLMModel
from pocket_tts.modules.stateful_module import StatefulModule, increment_steps, init_states
from pocket_tts.utils.config import FlowLMConfig

from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_pocket_tts import EVERY, LATENT, LAYERS, PIECES, VARIANTS, Shape, tensors


def publishers(shape: Shape) -> FlowLMModel:
    """Return the publisher's model with the tensors of `shape`."""
    config = FlowLMConfig(
        dtype="float32",
        flow={"dim": 16, "depth": 2},
        transformer={
            "d_model": shape.width,
            "hidden_scale": 1,
            "dim_feedforward": shape.hidden,
            "max_period": shape.base,
            "num_heads": shape.width // shape.head,
            "num_kv_heads": shape.heads_kv,
            "num_layers": LAYERS,
        },
        lookup_table={
            "dim": shape.width,
            "n_bins": PIECES,
            "tokenizer": "sentencepiece",
            "tokenizer_path": str(FIXTURES / "tokenizers/spm_unigram/spiece.model"),
        },
        z_dim=shape.z_dim,
    )
    model = FlowLMModel.from_pydantic_config(config, LATENT, shape.voice)
    model.speaker_proj_weight = torch.nn.Parameter(torch.zeros(shape.width, LATENT))
    named = tensors(shape)
    found = {name.removeprefix("flow_lm."): torch.from_numpy(value) for name, value in named.items()}
    found = {name: value for name, value in found.items() if not name.startswith("mimi.")}
    left = {name for name in model.state_dict() if not name.startswith("flow_net.")} - set(found)
    assert not left, left
    kept = {name: value for name, value in model.state_dict().items() if name.startswith("flow_net.")}
    model.load_state_dict({**kept, **found}, strict=True)
    for name, module in model.named_modules():
        if isinstance(module, StatefulModule):
            module._module_absolute_name = name
    return model.eval()


def states(model: FlowLMModel, shape: Shape) -> np.ndarray:
    """Return what the flow net reads at every position."""
    first = int(shape.voice)
    texts = model.conditioner(torch.tensor([shape.tokens[first:-1]]))
    before = [model.bos_before_voice] if shape.voice else []
    start = torch.full((1, 1, LATENT), torch.nan)
    latent = model.input_linear(torch.where(torch.isnan(start), model.bos_emb, start))
    read = torch.cat([*before, texts, latent], dim=1)
    made = model.out_norm(model.transformer(read, None))
    if model.z_proj is not None:
        made = model.z_proj(made)
    state, nothing = init_states(model, 1, read.shape[1]), torch.empty(1, 0, shape.width)
    model.backbone(nothing, torch.cat([*before, texts], dim=1), torch.empty(1, 1, LATENT), state)
    increment_steps(model, state, read.shape[1] - 1)
    step = model.backbone(latent, nothing, start, state)
    assert torch.allclose(step[0, -1], made[0, -1], rtol=1e-4, atol=1e-5)
    return made[0].numpy()


def main() -> None:
    with torch.no_grad():
        found = {name: states(publishers(shape), shape)[:, ::EVERY] for name, shape in VARIANTS.items()}
    (FIXTURES / "pocket-tts").mkdir(exist_ok=True)
    np.savez(FIXTURES / "pocket-tts/states.npz", **found)


if __name__ == "__main__":
    main()
