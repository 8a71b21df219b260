"""Step 3.5 under its publisher's class and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import InconsistentError
from helpers.tiny_models import TOKENS, make, relative

pytestmark = pytest.mark.filterwarnings("ignore")


def test_step_as_it_is_published(tmp_path: Path) -> None:
    """As a text model alone, with lists that go on for a block that predicts further tokens."""
    expected = make("step35", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    for key in ("per_layer_config", "mlp_layer_types", "rope_parameters", "num_sliding_attention_heads"):
        del config[key]
    for key, new in (("n_routed_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_top_k"),
                     ("num_key_value_heads", "num_attention_groups")):
        config[new] = config.pop(key)
    config |= {
        "architectures": ["Step3p5ForCausalLM"], "num_nextn_predict_layers": 1, "moe_layers_enum": "1,2,3,4",
        "layer_types": [*config["layer_types"], "sliding_attention"],
        "rope_theta": [9000.0, 700.0, 700.0, 9000.0, 700.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0], "swiglu_limits": [*config["swiglu_limits"], None],
        "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16},
        "use_head_wise_attn_gate": True, "moe_router_activation": "sigmoid", "yarn_only_types": ["full_attention"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {name: x for name, x in load_file(tmp_path / "model.safetensors").items() if "vi" not in name}
    tensors |= {name.replace(".1.", ".4."): x + 1 for name, x in tensors.items() if ".layers.1." in name}
    save_file(tensors, tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note] and len(graph.dropped) > 10
    for key, wrong in (("partial_rotary_factors", [1.0] * 5), ("rope_theta", [9000.0, 700.0, 800.0, 9000.0])):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: wrong}))
        with pytest.raises(InconsistentError):
            graph_of(str(tmp_path))
