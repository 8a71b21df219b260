"""The models that mlx-lm computes: names of its modules, by which it finds the class of a config.json.

Source: mlx-lm 0.32.2, the modules of `mlx_lm/models` that have a `Model`, and `MODEL_REMAPPING` of its `utils.py`.
"""

from __future__ import annotations

VERSION = "0.32.2"
_NAMES = """
    Klear afm7 afmoe apertus baichuan_m1 bailing_hybrid bailing_moe bailing_moe_linear bailing_moe_v3 bitnet
    cohere cohere2 dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v41 deepseek_v41_text dots1
    ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon_h1 falcon_mamba gear gemma gemma2 gemma3 gemma3_text
    gemma3n gemma4 gemma4_text gemma4_unified glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode
    gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid helium hunyuan hunyuan_v1_dense internlm2 internlm3
    iquestcoder iquestloopcoder jamba joyai_llm_flash kimi_k2 kimi_k25 kimi_k3 kimi_linear kimi_vl laguna lfm2
    lfm2-vl lfm2_moe lille-130m llama llama4 llama4_text llava longcat_flash longcat_flash_ngram mamba mamba2
    mellum mimo mimo_v2_flash minicpm minicpm3 minimax minimax_m2 minimax_m3_vl ministral3 mistral mistral3
    mistral4 mixtral muse_glimmer muse_spark nanbeige nanochat nemotron nemotron-nas nemotron_h olmo olmo2 olmo3
    olmo_hybrid olmoe openelm phi phi3 phi3small phimoe phixtral pixtral plamo plamo2 plamo3 prism_hadamard_qwen35
    qwen qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe
    recurrent_gemma rwkv7 seed_oss smollm3 spark2_5 stablelm starcoder2 step3p5 talkie telechat3 xverse youtu_llm
"""
MODEL_TYPES = frozenset(_NAMES.split())
