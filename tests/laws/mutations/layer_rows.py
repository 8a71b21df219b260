"""Mistakes in the tables of today's families: norms, halves of experts and keys exchanged, one family after another."""

from __future__ import annotations

from laws.mutations.rows import Planted, among, several

A = "converters.architectures."
INPUT, ATTENTION = ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")
BEHIND = ("post_attention_norm", "post_attention_layernorm")


def exchanged(model: str, module: str, one: tuple[str, str], other: tuple[str, str]) -> Planted:
    """The sources of two norms of a block exchanged."""
    changes = tuple(
        (A + module, f'norm("{role}", "{source}"', f'norm("{role}", "{wrong}"')
        for (role, source), (_, wrong) in ((one, other), (other, one))
    )
    return several(f"norms of {model} exchanged", model, "transformers", *changes)


NORMS = (
    *(
        exchanged(model, module, INPUT, ATTENTION)
        for model, module in (
            ("minimax_m2", "minimax_m2"), ("granitemoe", "granitemoe"), ("exaone_moe", "exaone_moe"),
            ("smollm3", "_tensors"), ("arcee", "_tensors"), ("mellum one base", "_tensors"), ("laguna", "laguna"),
            ("hy_v3", "hy_v3"), ("llama4", "llama4"), ("nemotron", "nemotron"), ("kimi linear", "kimi_linear"),
            ("granite hybrid", "granitehybrid"), ("minicpm3", "minicpm3"), ("mimo2", "mimo2"), ("dots1", "dots1"),
            ("qwen3vl", "_tensors"), ("qwen3vlmoe", "qwen3vlmoe"), ("olmoe", "_tensors"), ("jais2", "_tensors"),
            ("ernie4_5", "_ernie"), ("ernie4_5_moe", "_ernie"), ("phimoe", "phimoe"),
            ("chameleon", "chameleon"), ("unlimited ocr", "deepseek2_ocr"), ("minimax-01", "minimax_01"),
            ("dots3 note", "dots3note"), ("ling 3", "bailingmoe3"),
            ("glm 5.3 flash", "glm5_next"), ("minimax-m3", "minimax_m3"),
        )
    ),
    exchanged("deepseek v4", "deepseek4", ("attn_norm", "attn_norm"), ("ffn_norm", "ffn_norm")),
    exchanged("qwen3next", "_gated_delta", INPUT, BEHIND),
    exchanged("qwen35", "_gated_delta", INPUT, BEHIND),
    exchanged("lfm2", "_lfm2", ("attn_norm", "operator_norm"), ("ffn_norm", "ffn_norm")),
    exchanged("gemma4 shared", "_gemma_layers", BEHIND, ("post_ffw_norm", "post_feedforward_layernorm")),
    exchanged("gemma3n", "_gemma_layers", BEHIND, ("post_ffw_norm", "post_feedforward_layernorm")),
    exchanged("seed_oss", "seed_oss", INPUT, BEHIND),
    exchanged("glm4moe", "glm4moe", INPUT, BEHIND),
    exchanged("exaone4", "exaone4", BEHIND, ("post_ffw_norm", "post_feedforward_layernorm")),
    exchanged("olmo3", "olmo2", BEHIND, ("post_ffw_norm", "post_feedforward_layernorm")),
    exchanged("glm4", "glm4", ATTENTION, ("post_ffw_norm", "post_mlp_layernorm")),
    exchanged("afmoe", "afmoe", ("ffn_norm", "pre_mlp_layernorm"), ("post_ffw_norm", "post_mlp_layernorm")),
    exchanged("jamba", "jamba", INPUT, ("ffn_norm", "pre_ff_layernorm")),
    exchanged("muse glimmer", "muse_glimmer", INPUT, ("ffn_norm", "pre_feedforward_layernorm")),
    exchanged("apertus", "apertus", ("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")),
)

PARTS = (
    *(
        several(f"experts' gate and up of {model} exchanged", model, "transformers",
                (A + module, '("w1", "w2", "w3")', '("w3", "w2", "w1")'))
        for model, module in (
            ("minimax_m2", "minimax_m2"), ("kimi linear", "kimi_linear"), ("deepseek v4", "_deepseek4"),
        )
    ),
    *among(
        A + "cohere2",
        ("branches of Cohere 2 one after the other", "cohere2", "transformers",
         '{"norm": "layer", "residual": "parallel"}', '{"norm": "layer", "residual": "sequential"}'),
    ),
    *among(
        A + "cohere2moe",
        ("shared experts of North added", "cohere2moe", "transformers", '"shared_experts": "averaged"',
         '"shared_experts": "added"'),
    ),
    *among(
        A + "mistral4",
        ("experts of Mistral 4 scored by sigmoid", "mistral4", "transformers",
         'Default(1, "Mistral 4 scores experts by softmax")', 'Default(2, "Mistral 4 scores experts by softmax")'),
    ),
    *among(
        A + "hunyuan_dense",
        ("norms of Hunyuan before the rotation", "hunyuan dense", "transformers", '"qk_norm_at": "after"',
         '"qk_norm_at": "before"'),
    ),
    *among(
        A + "gpt_oss",
        ("rows of gate and up of gpt-oss exchanged", "gpt-oss", "logits", "GATE, UP = Every(2, 0), Every(2, 1)",
         "GATE, UP = Every(2, 1), Every(2, 0)"),
        ("biases of gate and up of gpt-oss exchanged", "gpt-oss", "logits", "gates=EveryColumn(2, 0),\n            ups="
         "EveryColumn(2, 1)", "gates=EveryColumn(2, 1),\n            ups=EveryColumn(2, 0)"),
    ),
    several("experts' gate and up of DBRX exchanged", "dbrx", "transformers",
            (A + "dbrx", "hf ffn.experts.mlp.w1 @stacked", "hf ffn.experts.mlp.v1 @stacked"),
            (A + "dbrx", "ffn_up_exps.weight      : n_expert n_ff n_embd | hf ffn.experts.mlp.v1",
             "ffn_up_exps.weight      : n_expert n_ff n_embd | hf ffn.experts.mlp.w1")),
    several("gate and up of Falcon-H1 exchanged", "falcon-h1", "transformers",
            (A + "falcon_h1", "hf feed_forward.gate_proj.weight", "hf feed_forward.other_proj.weight"),
            (A + "falcon_h1", "hf feed_forward.up_proj.weight", "hf feed_forward.gate_proj.weight"),
            (A + "falcon_h1", "hf feed_forward.other_proj.weight", "hf feed_forward.up_proj.weight")),
    *among(
        A + "mimo2",
        ("sinks of MiMo ignored", "mimo2", "reading", '"add_swa_attention_sink_bias", True',
         '"add_swa_attention_sink_bias", False'),
        ("scale of values' key misspelt", "mimo2", "loader", '"attention.value_scale"', '"attention.values_scale"'),
        ("values as they are", "mimo2", "llama.cpp", '{"hf": "attention_value_scale"}, null=1.0, absent=1.0,',
         '{"hf": "value_scale"}, null=1.0, absent=0.707,'),
        ("base of windows for all of MiMo", "mimo2", "transformers",
         '"rope_parameters.sliding_attention.rope_theta|swa_rope_theta"',
         '"rope_parameters.full_attention.rope_theta|swa_rope_theta"'),
    ),
    *among(
        A + "hrm_text",
        ("HRM's gate and queries exchanged", "hrm", "logits", '("gate", *"qkv")', '("q", "gate", "k", "v")'),
        ("HRM's cycles exchanged", "hrm", "transformers", 'fields={"hf": "H_cycles"}', 'fields={"hf": "L_cycles"}'),
    ),
    *among(
        A + "minimax_01",
        ("blocks that attend softly exchanged", "minimax-01", "reading",
         '"linear_attention": True, "full_attention": False',
         '"linear_attention": False, "full_attention": True'),
        ("scale of what a branch read ignored", "minimax-01", "reading",
         '"layernorm_full_attention_alpha|full_attn_alpha_factor"', '"layernorm_full_attention_alpha|mlp_beta_factor"'),
    ),
    *among(
        A + "minimax_m3",
        ("M3's blocks of tokens one too many", "minimax-m3 that chooses", "transformers", '"index_topk_blocks|',
         '"index_block_size|'),
    ),
    *among(
        A + "step35",
        ("Step's bounds of shared experts ignored", "step35", "transformers", '"swiglu_limits_shared"',
         '"swiglu_limits_all"'),
        ("Step's heads with windows are those without", "step35", "reading", '"num_sliding_attention_heads|', '"'),
        ("Step's weights of experts not scaled", "step35", "transformers", '"moe_router_scaling_factor"',
         '"moe_router_scale"'),
    ),
    *among(
        A + "chameleon",
        ("norms of Chameleon's heads as they are", "chameleon", "logits", '"(two d) -> (d two)"',
         '"(d two) -> (d two)"'),
    ),
    *among(
        A + "_kda",
        ("Ling's widths of queries and values exchanged", "ling 3", "reading", 'values["head_dim_v_mla"] if count',
         'values["head_dim_mla"] if count'),
    ),
    several("what V4 compresses and its weights exchanged", "deepseek v4", "transformers",
            (A + "deepseek4", "hf attn.compressor.wkv.weight", "hf attn.compressor.other.weight"),
            (A + "deepseek4", "hf attn.compressor.wgate.weight", "hf attn.compressor.wkv.weight"),
            (A + "deepseek4", "hf attn.compressor.other.weight", "hf attn.compressor.wgate.weight")),
    *among(
        A + "_deepseek4",
        ("one base for all blocks of V4", "deepseek v4", "transformers",
         '"rope_parameters.compress.rope_theta|compress_rope_theta"', '"rope_parameters.main.rope_theta|rope_theta"'),
        ("blocks of V4 that choose experts by token exchanged", "deepseek v4", "reading",
         '"hash_moe": False, "moe": True', '"hash_moe": True, "moe": False'),
        ("count of V4's blocks with a table misspelt", "deepseek v4", "loader", '"hash_layer_count"',
         '"hash_layers_count"'),
        ("V4's tokens a key exchanged", "deepseek v4", "reading", "SPARSE, HEAVY = 4, 128", "SPARSE, HEAVY = 128, 4"),
    ),
    *among(
        A + "_dots3",
        ("factors of low ranks left out", "dots3 note", "transformers", "math.sqrt(values[\"n_embd\"] / rank)", "1.0"),
    ),
    *among(
        A + "_muse",
        ("factor of Muse's queries left out", "muse glimmer", "transformers", 'float(values["qk_scale"])', "1.0"),
    ),
    *among(
        A + "_qwen4",
        ("queries and keys of Qwen4-Exp's indexer exchanged", "qwen4exp", "logits",
         'joint, Split("0", queries)', 'joint, Split("index_dim", f"{queries}+index_dim")'),
        ("key of the hash's factors misspelt", "qwen4exp", "loader", '"ple.layer_multipliers"', '"ple.multipliers"'),
        ("block of hashed sequences counted from zero", "qwen4exp", "reading", "tuple(n - 1 for n in found)",
         "tuple(n for n in found)"),
        ("Qwen4-Exp's blocks as long as its indexer has heads", "qwen4exp", "reading",
         '{"hf": "indexer_compress_ratio"}', '{"hf": "indexer_n_heads"}'),
        ("norms of Qwen4-Exp's streams as they are", "qwen4exp", "logits", "width=width, layout=ADD_ONE)",
         "width=width)"),
    ),
    *among(
        A + "qwen4exp",
        ("silu behind Qwen4-Exp's delta nets", "qwen4exp", "transformers", '"delta_gate": "sigmoid"',
         '"delta_gate": "silu"'),
    ),
    *among(
        A + "_mimo",
        ("MiMo's window one short", "mimo2 of a window", "transformers", 'int(values["window_before"]) + 1',
         'int(values["window_before"])'),
    ),
)

LAYERS = (*NORMS, *PARTS)
