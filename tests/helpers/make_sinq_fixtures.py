"""Make fixtures/sinq: tiny LLaMAs that sinq 0.2.0 quantized and saved on a CPU, and what it computes of them.

Run once, where sinq and what it imports are installed (`pip install --no-deps sinq termcolor accelerate`, and an empty
module `datasets`): `python tests/helpers/make_sinq_fixtures.py`. The answers are the sha256 of each matrix by the
library's `dequantize`, which computes in float32 here but for tables, and its logits of TOKENS.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[2] / "fixtures" / "sinq"
TOKENS = (1, 17, 4, 30, 23, 2, 29, 5)
CASES: dict[str, dict[str, Any]] = {
    "sinq-4": {"nbits": 4, "group_size": 64, "method": "sinq"},
    "squares": {"nbits": 4, "group_size": 32, "method": "sinq", "tiling_mode": "2D"},
    "plain-3": {"nbits": 3, "group_size": 32, "method": "dual_sinq"},
    "nf4": {"nbits": 4, "group_size": 32, "method": "sinq_nf4"},
    "nf3-squares": {"nbits": 3, "group_size": 32, "method": "sinq_nf3_quantAux", "tiling_mode": "2D"},
    "one-zero-5": {"nbits": 5, "group_size": 32, "method": "sinq_noz_quantAux"},
    "sinq-6": {"nbits": 6, "group_size": 32, "method": "sinq"},
    "pickle": {"nbits": 2, "group_size": 32, "method": "sinq"},
}
"""Name → how it is quantized; `sinq` means scales and zeros of 8 bits. 64 columns do not divide 96: tiles of 32."""


def make() -> None:
    """Write the fixtures."""
    import torch
    from sinq.patch_model import AutoSINQHFModel  # type: ignore[import-not-found]
    from sinq.sinqlinear import SINQLinear, sinq_base_quant_config  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM

    answers: dict[str, dict[str, str]] = {}
    logits: dict[str, np.ndarray] = {}
    for name, how in CASES.items():
        torch.manual_seed(5)
        sizes = {"vocab_size": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.1)).eval()
        settings = sinq_base_quant_config(**how)
        AutoSINQHFModel.quantize_model(model, None, settings, compute_dtype=torch.float32, device="cpu")
        for layer, module in model.named_modules():
            if isinstance(module, SINQLinear):
                values = np.ascontiguousarray(module.dequantize().float().numpy())
                answers.setdefault(name, {})[layer] = hashlib.sha256(values.tobytes()).hexdigest()
        if not how["method"].count("_nf"):  # its matrices are float16, which it multiplies no float32 by
            with torch.no_grad():
                logits[name] = model(torch.tensor([TOKENS])).logits[0].numpy()
        save = AutoSINQHFModel.save_quantized if name == "pickle" else AutoSINQHFModel.save_quantized_safetensors
        save(model, None, str(OUT / name), write_tokenizer=False)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)
    (OUT / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    np.savez_compressed(OUT / "logits.npz", **logits)


if __name__ == "__main__":
    make()
