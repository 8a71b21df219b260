"""Make fixtures/mlx: what Apple's MLX and mlx-lm compute of groups and folders that ggferry wrote.

Run once, in an environment that has them beside ggferry: pip install mlx==0.32.4 mlx-cpu==0.32.4, and without its
dependencies mlx-lm==0.32.2; then `python tests/helpers/make_mlx_fixtures.py`. For every input that MLX was given, the
sha256 stands beside that of its answer, so that a test can tell whether it still gives MLX the same.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.quant.affine_groups import ENCODED, affine_groups
from ggferry.quant.codec import codec

FIXTURES = Path(__file__).parents[2] / "fixtures"
OUT = FIXTURES / "mlx"
TYPES = (*map(str.upper, ENCODED), "TQ1_0", "TQ2_0")
SOURCES = {
    "k256": "quantize/k256.Q4_K_M.gguf",
    "llama": "hf/out/llama/llama.q8_0.gguf",
    "llama3": "hf/ckpt/llama3_rope_tied",
    "qwen2": "hf/ckpt/qwen2",
}
ROWS, COLUMNS = 24, 512
TOKENS = (1, 17, 4, 90, 33, 2, 61, 5, 44, 100, 12, 77, 3, 3, 58, 29)


def groups(name: str) -> list[np.ndarray]:
    """Return codes, scales and biases of Gaussian weights in blocks of a type."""
    values = np.random.default_rng(33).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    one = codec(name)
    form = affine_groups(one.type)
    assert one.encode is not None and form is not None
    return [np.ascontiguousarray(each) for each in form.apart(one.encode(values, None), COLUMNS)]


def sha(*arrays: Any) -> str:
    """Return the sha256 of the bytes of arrays, one after the other."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)).hexdigest()


def main() -> None:
    """Write the fixtures."""
    import mlx.core as mx  # type: ignore[import-not-found]
    import mlx_lm  # type: ignore[import-not-found]
    from mlx_lm.utils import load_model  # type: ignore[import-not-found]

    OUT.mkdir(exist_ok=True)
    answers: dict[str, Any] = {"mlx": mx.__version__, "mlx_lm": mlx_lm.__version__, "types": {}, "folders": {}}
    logits = {}
    for name in TYPES:
        form, (words, scales, biases) = affine_groups(codec(name).type), groups(name)
        assert form is not None
        given = mx.array(words.view("<u4")), mx.array(scales), mx.array(biases)
        values = np.array(mx.dequantize(*given, group_size=form.size, bits=form.bits))
        answers["types"][name] = {"given": sha(words, scales, biases), "values": sha(values + 0.0)}
    with tempfile.TemporaryDirectory() as room:
        for name, source in SOURCES.items():
            folder = Path(room) / name
            convert(Request(str(FIXTURES / source), str(folder), to="mlx", dtype="f32", level="fast"))
            tensors = mx.load(str(folder / "model.safetensors"))
            config = json.loads((folder / "config.json").read_text())
            values = {}
            for base in (key.removesuffix(".scales") for key in tensors if key.endswith(".scales")):
                own = config["quantization"].get(base, config["quantization"])
                three = (tensors[f"{base}.{end}"] for end in ("weight", "scales", "biases"))
                found = mx.dequantize(*three, group_size=own["group_size"], bits=own["bits"])
                values[f"{base}.weight"] = sha(np.array(found) + 0.0)
            model, _ = load_model(folder)
            logits[name] = np.array(model(mx.array([TOKENS])))[0]
            data = (folder / "model.safetensors").read_bytes()
            answers["folders"][name] = {"given": hashlib.sha256(data).hexdigest(), "values": values}
    (OUT / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    np.savez_compressed(OUT / "logits.npz", **logits)


if __name__ == "__main__":
    main()
