"""Mistakes in the architecture tables and in what they name: both sides of the proof read them."""

from __future__ import annotations

from laws.mutations.rows import Planted, among, several

A = "converters.architectures."
DERIVED = "converters.schema.derivations"
KEYS = (
    *among(
        A + "_common",
        ("window's key misspelt", "mistral", "loader", '"attention.sliding_window", fields={"hf": "sliding_window"}',
         '"attention.slide_window", fields={"hf": "sliding_window"}'),
        ("count of experts' key misspelt", "mixtral", "loader", '"expert_count"', '"experts_count"'),
        ("count of used experts' key misspelt", "mixtral", "loader", '"expert_used_count"', '"expert_use_count"'),
        ("width of experts' key misspelt", "qwen3moe", "loader", '"expert_feed_forward_length"',
         '"experts_feed_forward_length"'),
        ("epsilon's key misspelt", "llama", "loader", '"attention.layer_norm_rms_epsilon"', '"attention.rms_epsilon"'),
        ("key length's key misspelt", "qwen3", "loader", '"attention.key_length"', '"attention.key_len"'),
        ("context's key misspelt", "llama", "loader", '"context_length"', '"context_len"'),
        ("kv heads' key misspelt", "llama", "loader", '"attention.head_count_kv"', '"attention.heads_kv"'),
    ),
    *among(
        A + "_common",
        ("window is ignored", "mistral", "transformers", 'in unwindowed else values.get("window_stated")',
         "in unwindowed else None"),
    ),
    *among(
        A + "_rope",
        ("rotary base's key misspelt", "llama", "loader", '"rope_base", "rope.freq_base"',
         '"rope_base", "rope.freqbase"'),
        ("stretch's key misspelt", "llama linear", "loader", '"rope_factor", "rope.scaling.factor"',
         '"rope_factor", "rope.scaling.factr"'),
        ("stretch's kind's key misspelt", "llama yarn", "loader", '"rope.scaling.type"', '"rope.scaling.kind"'),
        ("original context's key misspelt", "llama yarn", "loader", '"rope.scaling.original_context_length"',
         '"rope.scaling.context_length"'),
        ("attention factor's key misspelt", "llama longrope", "loader", '"rope.scaling.attn_factor"',
         '"rope.scaling.attention_factor"'),
    ),
    *among(
        A + "gemma2",
        ("cap of scores' key misspelt", "gemma2", "loader", '"attn_softcap", "attn_logit_softcapping"',
         '"attn_softcap", "attn_softcapping"'),
        ("cap of logits' key misspelt", "gemma2", "loader", '"final_softcap", "final_logit_softcapping"',
         '"final_softcap", "final_softcapping"'),
    ),
)

VALUES = (
    *among(
        A + "_common",
        ("another width for the context", "qwen2", "transformers",
         'N_CTX = HParam("n_ctx", "context_length", fields={"hf": "max_position_embeddings"})',
         'N_CTX = HParam("n_ctx", "context_length", fields={"hf": "vocab_size"})'),
        ("all experts are used", "mixtral", "transformers", '{"hf": "num_experts_per_tok"}',
         '{"hf": "num_local_experts"}'),
        ("epsilon ignored", "qwen2 epsilon", "transformers", '{"hf": "rms_norm_eps"}', '{"hf": "rms_eps"}'),
        ("Qwen's window where it is switched off", "qwen2 no window", "transformers",
         'derive="window_stated * window_used"', 'derive="window_stated"'),
        ("GELU by the error function", "gemma2", "logits", '"gelu_pytorch_tanh": "gelu_tanh"',
         '"gelu_pytorch_tanh": "gelu"'),
    ),
    *among(
        A + "_rope",
        ("rotary base ignored", "qwen3", "transformers",
         'scaling_place("rope_theta") + "|rope_theta"', '"rope_thta"'),
        ("turned part of a head ignored", "stablelm", "transformers", "rope_parameters.partial_rotary_factor|", ""),
        ("attention factor ignored", "llama yarn attention_factor", "transformers",
         '{"hf": scaling_place("attention_factor")}', '{"hf": scaling_place("attn_factor")}'),
    ),
    *among(
        DERIVED,
        ("stretch doubled", "llama linear", "transformers", 'return float(values["rope_stretch"])',
         'return 2 * float(values["rope_stretch"])'),
        ("linear called yarn", "llama linear", "transformers", '"linear": "linear"', '"linear": "yarn"'),
        ("yarn's magnitude squared", "llama yarn", "transformers", "return _yarn_magnitude(values, factor) / implied",
         "return _yarn_magnitude(values, factor)"),
        ("longrope's magnitude left out", "llama longrope", "transformers",
         "return math.sqrt(1 + math.log(factor) / math.log(original))", "return 1.0"),
        ("long factors are the short ones", "llama longrope", "logits", 'return values["rope_long"]',
         'return values["rope_short"]'),
        ("LLaMA 3's long waves are not stretched", "llama3", "logits", "factors.append(float(factor))",
         "factors.append(1.0)"),
        ("LLaMA 3's low and high exchanged", "llama3", "logits",
         'low, high = values["rope_low"], values["rope_high"]',
         'low, high = values["rope_high"] / 8, values["rope_low"] * 8'),
        ("windows in the other blocks", "gemma3 period", "transformers", "tuple((n + 1) % period != 0",
         "tuple(n % period != 0"),
        ("Qwen's first window one block late", "qwen2 window", "transformers", "tuple(n >= first for",
         "tuple(n > first for"),
        ("mscale of all dimensions ignored", "deepseek v2 yarn", "transformers", "return 0.1 * every if every",
         "return 0.2 * every if every"),
    ),
    *among(
        A + "gemma2",
        ("cap of scores ignored", "gemma2", "transformers", '{"hf": "attn_logit_softcapping"}',
         '{"hf": "attn_logit_softcaping"}'),
        ("cap of logits ignored", "gemma2", "transformers", '{"hf": "final_logit_softcapping"}',
         '{"hf": "final_softcapping"}'),
    ),
    *among(
        A + "_granite",
        ("attention multiplier ignored", "granite", "transformers", '{"hf": "attention_multiplier"}',
         '{"hf": "attn_multiplier"}'),
        ("residual multiplier ignored", "granite", "transformers", '{"hf": "residual_multiplier"}',
         '{"hf": "residual_mult"}'),
        ("embedding multiplier ignored", "granite", "transformers", '{"hf": "embedding_multiplier"}',
         '{"hf": "embed_multiplier"}'),
    ),
    *among(A + "granite", ("logits multiplied", "granite", "transformers", '"logit_scale": "divide"',
                         '"logit_scale": "multiply"')),
    *among(A + "command_r", ("logit scale ignored", "command-r", "transformers", '{"hf": "logit_scale"}',
                           '{"hf": "logits_scale"}')),
    *among(A + "stablelm", ("branches side by side", "stablelm 12b", "reading", '{"hf": "use_parallel_residual"}',
                          '{"hf": "parallel"}')),
    *among(A + "gptneox", ("branches in turn", "gptneox sequential", "transformers",
                         '{"hf": "use_parallel_residual", "ggml"', '{"hf": "use_parallel", "ggml"')),
    *among(A + "bloom", ("another slope", "bloom", "transformers", "absent=8.0", "absent=4.0")),
    *among(A + "mpt", ("clip ignored", "mpt clip", "transformers", '"attn_config.clip_qkv"', '"clip"')),
    *among(A + "qwen3moe", ("chosen experts not normed", "qwen3moe", "transformers", '{"hf": "norm_topk_prob"}',
                          '{"hf": "norm_prob"}')),
    *among(
        A + "_deepseek",
        ("routed experts not scaled", "deepseek v2 groups", "transformers", '{"hf": "routed_scaling_factor"}',
         '{"hf": "scaling_factor"}'),
        ("groups of experts not limited", "deepseek v3", "transformers", '{"hf": "n_group"}', '{"hf": "n_groups"}'),
    ),
    *among(A + "_gemma3", ("one rotary base for all blocks", "gemma3", "transformers",
                        "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq",
                        "rope_parameters.full_attention.rope_theta")),
)

TENSORS = (
    *among(
        A + "_tensors",
        ("rows of queries stay halves", "llama", "logits", 'q=heads_halves_to_pairs("n_head"), ', ""),
        ("rows of keys by the number of queries' heads", "llama", "logits", 'k=heads_halves_to_pairs("n_head_kv")',
         'k=heads_halves_to_pairs("n_head")'),
    ),
    *among(
        A + "llama",
        ("SiLU called GELU", "llama", "logits", '"activation": "silu", "expert_norm"',
         '"activation": "gelu", "expert_norm"'),
        ("experts' down and up exchanged", "mixtral", "reading", '("w1", "w2", "w3"), width',
         '("w1", "w3", "w2"), width'),
        ("experts' gate and up exchanged", "mixtral", "transformers", '("w1", "w2", "w3"), width',
         '("w3", "w2", "w1"), width'),
        ("chosen experts not normed (Mixtral)", "mixtral", "transformers", ', "expert_norm": True', ""),
    ),
    *among(
        A + "_tensors",
        ("gate and up exchanged", "qwen2", "transformers",
         'names: Sequence[str] = ("gate_proj", "down_proj", "up_proj"), *, width: str = "n_ff",',
         'names: Sequence[str] = ("up_proj", "down_proj", "gate_proj"), *, width: str = "n_ff",'),
        ("norms of queries and keys exchanged", "qwen3", "transformers", 'names: Sequence[str] = ("q_norm", "k_norm")',
         'names: Sequence[str] = ("k_norm", "q_norm")'),
        ("norms before and behind attention exchanged", "qwen3", "reading",
         'norm("attn_norm", "input_layernorm"', 'norm("attn_norm", "post_attention_layernorm"'),
        ("keys and values exchanged", "qwen2", "transformers", '("q_proj", "k_proj", "v_proj", "o_proj")',
         '("q_proj", "v_proj", "k_proj", "o_proj")'),
        ("router's bias of selection dropped", "deepseek v3", "reading", 'return (tensor("exp_probs_b.bias"',
         'return () if source else (tensor("exp_probs_b.bias"'),
    ),
    *among(
        A + "_common",
        ("activation misread", "llama", "reading", 'words={"silu": "silu", "swish": "silu"}',
         'words={"swish": "silu"}'),
    ),
    *among(
        "converters.model_graph.tensor_roles",
        ("experts in reverse order", "mixtral", "transformers", "for e in range(1 + max(e for e, _ in places))",
         "for e in reversed(range(1 + max(e for e, _ in places)))"),
    ),
    *among(
        A + "_gemma",
        ("one is not added to two norms", "gemma2", "logits", '"pre_feedforward_layernorm", layout=ADD_ONE',
         '"pre_feedforward_layernorm"'),
        ("embeddings not scaled", "gemma2", "transformers", ', "embedding_scale": "sqrt_width"', ""),
    ),
    *among(
        "converters.schema.layouts.order",
        ("second part of every group first", "gptneox", "logits",
         "return np.zeros_like(rows), group * ends[-1] + (ends - widths)[part] + within",
         "return np.zeros_like(rows), group * ends[-1] + (ends - widths)[part] + within[::-1]"),
    ),
    *among(
        "converters.schema.layouts.parts",
        ("keys of every head taken for its values", "deepseek v2", "logits",
         "* (row_count(inputs[0]) // int(self.groups)) + int(self.start) + row",
         "* (row_count(inputs[0]) // int(self.groups)) + row"),
    ),
    *among(A + "_latent", ("keys not turned", "deepseek v2", "reading", ", Transpose())",
                          ", Pick(1, 0, 'n_head * kv_rank'))")),
    *among(A + "_mamba", ("rate as its logarithm", "mamba", "logits", '"decay": "rate"', '"decay": "log"')),
)

SPEECH = (
    *among(
        A + "qwen3tts",
        ("output of all tokens", "qwen3 tts", "reading", '"n_codec n_embd", "codec_head"',
         '"n_vocab n_embd", "codec_head"'),
        ("layers of the network exchanged", "qwen3 tts", "reading", "for n in (1, 2) for part",
         "for n in (2, 1) for part"),
        ("positions along one axis", "qwen3 tts", "loader", "*rope.ROPE_OF_AXES,", "*rope.ROPE,"),
        ("rotated in pairs", "qwen3 tts", "recorded", '"rope": "halves"}', '"rope": "pairs"}'),
        ("rotary base by another name", "qwen3 tts", "recorded", "*rope.ROPE_OF_AXES,",
         "*(replace(one, fields={'hf': 'x'}) if one is rope.BASE else one for one in rope.ROPE_OF_AXES),"),
    ),
    *among(
        "converters.schema.layouts.projected",
        ("no activation between the layers", "qwen3 tts", "logits", "inner /= 1 + np.exp(-inner)", "pass"),
        ("first bias left out", "qwen3 tts", "logits", "tile, read, UP, UP_BIAS,", "0 * tile, read, UP, UP_BIAS,"),
        ("texts one row early", "qwen3 tts", "logits", "self._projected(tile, read, shapes)[first",
         "np.roll(self._projected(tile, read, shapes), -1, 0)[first"),
        ("codes one row late", "qwen3 tts", "logits", "read(BELOW, first - count, stop - count)",
         "np.roll(read(BELOW, first - count, stop - count), 1, 0)"),
    ),
    *among(
        "converters.forward.sound.qwen3tts",
        ("GELU between the layers", "qwen3 tts", "logits", "silu(x) if matrix == UP",
         "torch.nn.functional.gelu(x) if matrix == UP"),
        ("codes before texts", "qwen3 tts", "logits", "out[[*texts, *codes]]", "out[[*codes, *texts]]"),
    ),
    *among(
        "converters.tokenizers.code_tokens",
        ("the end is the tokenizer's", "qwen3 tts", "reading", '"eos": count + self.eos}', '"eos": count - 1}'),
    ),
)

SEVERAL = (
    several("experts scored by softmax", "deepseek v3", "transformers",
            (A + "deepseek2", '"expert_gating": 2, "expert_selection"', '"expert_gating": 1, "expert_selection"')),
    several(
        "window off by one", "mistral", "transformers",
        (A + "_common", "else declared_window(found)", "else declared_window(found) + 1"),
    ),
    several(
        "windows in the odd blocks", "gemma2", "transformers",
        (A + "gemma2", "    common.LAYER_WINDOWS,\n", "    gemma.WINDOW_PERIOD,\n"),
        (A + "gemma2", 'implied="each n % 2 == 0"', 'implied="each n % 2 == 1"'),
    ),
)

TABLES: tuple[Planted, ...] = (*KEYS, *VALUES, *TENSORS, *SPEECH, *SEVERAL)
