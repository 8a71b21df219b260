"""Run llama.cpp's converter on small checkpoints, and keep what its options made of them as digests.

    python tests/helpers/make_converter_fixtures.py LLAMA.CPP

LLAMA.CPP is the folder `thirdparty/llama.cpp` of the xllamacpp source archive. Pre-tokenizers of these vocabularies are
not among those that it knows, and are named 'gpt-2', which changes no tensor.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from gguf import GGUFReader

FIXTURES = Path(__file__).parents[2] / "fixtures"
FUSED = ("llama", "mistral", "qwen2", "qwen3", "starcoder2", "stablelm", "gemma2", "granite", "olmo", "mixtral")
RUN = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def tensors(path: Path) -> dict[str, list[object]]:
    """Return name → [type, shape, sha256 of the bytes] of every tensor of a GGUF file, by llama.cpp's own reader."""
    return {
        each.name: [each.tensor_type.name, each.shape.tolist(), hashlib.sha256(each.data.tobytes()).hexdigest()]
        for each in GGUFReader(path).tensors
    }


def converted(folder: str, checkpoint: Path, *options: str) -> dict[str, list[object]]:
    """Return the tensors that the converter makes of a checkpoint with these options."""
    with TemporaryDirectory() as made:
        out = Path(made) / "x.gguf"
        command = [sys.executable, "-c", RUN, folder, str(checkpoint), "--outfile", str(out), *options]
        subprocess.run(command, check=True, capture_output=True)
        return tensors(out)


if __name__ == "__main__":
    found = {
        name: converted(sys.argv[1], FIXTURES / "hf" / "ckpt" / name, "--outtype", "f32", "--fuse-qkv")
        for name in FUSED
    }
    (FIXTURES / "hf" / "out" / "fused.json").write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")
