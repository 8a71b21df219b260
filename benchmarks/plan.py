"""How long `ggferry plan` takes over ten thousand files: python benchmarks/plan.py [--files 10000] [--jobs 2]

An archive of tiny models: GGML-era files of every container, a sixth of them copies of others, and four files that are
no models in each folder. Tiny models make the headers the whole work, as they are of large ones; `--vocabulary 32000
--layers 32` gives them the headers of a large one. `--hf`: checkpoint folders instead, each with a tokenizer.json of
that many tokens; `--vocabularies`: how many different ones the archive has (a model's quantizations, and what was tuned
from it, share one).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from helpers.builders import Llama

ERAS = (("ggml", None, "F32"), ("ggmf", 1, "F16"), ("ggjt", 1, "F16"), ("ggjt", 3, "Q4_0"), ("ggjt", 3, "Q8_0"))
LAYER = {
    "self_attn.q_proj": (96, 96),
    "self_attn.k_proj": (48, 96),
    "self_attn.v_proj": (48, 96),
    "self_attn.o_proj": (96, 96),
    "mlp.gate_proj": (160, 96),
    "mlp.up_proj": (160, 96),
    "mlp.down_proj": (96, 160),
    "input_layernorm": (96,),
    "post_attention_layernorm": (96,),
}


def build(root: Path, files: int, vocabulary: int, layers: int, vocabularies: int) -> int:
    """Fill `root` with about `files` files of the GGML era; how many there are."""
    made = 0
    models = [
        {era: bytearray(_legacy(era, vocabulary - number, layers)) for era in ERAS} for number in range(vocabularies)
    ]
    while made < files:
        folder = root / f"{made:06}"
        folder.mkdir(parents=True)
        for number, (era, data) in enumerate(models[made // 10 % vocabularies].items()):
            data[-8:-4] = made.to_bytes(4, "little")  # another model: the end of the last tensor
            for copy in range(1 + (number == 0)):
                (folder / f"{era[0]}-{number}-{copy}.bin").write_bytes(data)
                made += 1
        for name in ("README.md", "config.txt", "notes.txt", "picture.png"):
            (folder / name).write_text(f"{name} {made}\n")
            made += 1
    return made


def _legacy(era: tuple[str, int | None, str], vocabulary: int, layers: int) -> bytes:
    container, version, kind = era
    return Llama(container=container, version=version, kind=kind, n_vocab=vocabulary, n_layer=layers).bytes()


def build_hf(root: Path, files: int, vocabulary: int, layers: int, vocabularies: int) -> int:
    """Fill `root` with checkpoint folders of about `files` files together; how many there are."""
    kinds = [_checkpoint(vocabulary - number, layers) for number in range(vocabularies)]
    made = 0
    while made < files:
        folder = root / f"model-{made:06}"
        folder.mkdir(parents=True)
        texts, header, size = kinds[made % vocabularies]
        for name, text in texts.items():
            (folder / name).write_text(text)
        with open(folder / "model.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(whole := 8 + len(header) + size)  # a hole: no weights are read
            # but for the samples by which duplicates are looked for: other models differ there
            os.pwrite(file.fileno(), made.to_bytes(4, "little"), whole // 8 * 4)
        made += 1 + len(texts)
    return made


def _checkpoint(vocabulary: int, layers: int) -> tuple[dict[str, str], bytes, int]:
    """A Llama's texts by file name, the header of its safetensors file, and the bytes of its tensors."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "vocab_size": vocabulary,
        "hidden_act": "silu",
    }
    shapes = {"model.embed_tokens": (vocabulary, 96), "model.norm": (96,), "lm_head": (vocabulary, 96)}
    shapes |= {f"model.layers.{n}.{name}": shape for n in range(layers) for name, shape in LAYER.items()}
    table, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    card = {"README.md": "---\nlicense: apache-2.0\n---\n# A model\n"}
    return card | {"config.json": json.dumps(config), **_tokenizer(vocabulary)}, json.dumps(table).encode(), end


def _tokenizer(count: int) -> dict[str, str]:
    """The files of a byte-level BPE of `count` tokens: words of the letters, each a merge of the word before."""
    tokens, merges = list(letters()), []
    grown = ((left, right) for left in iter(tokens) for right in letters()[64:91])
    for left, right in islice(grown, max(0, count - 2 - len(tokens))):
        merges.append([left, right])
        tokens.append(left + right)
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    named = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": len(tokens) + i, "content": text, "special": True, **named} for i, text in enumerate(special)]
    split = {"type": "Split", "pattern": {"Regex": find_pre("llama-bpe").chain[0]}, "behavior": "Isolated"}
    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges}
    document = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "post_processor": None,
        "decoder": spell,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**split, "invert": False}, spell]},
        "model": {**model, "ignore_merges": True},
    }
    named_roles = {"bos_token": special[0], "eos_token": special[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    return {"tokenizer.json": json.dumps(document, indent=1), "tokenizer_config.json": json.dumps(named_roles)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=10000)
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--vocabulary", type=int, default=300)
    options.add_argument("--vocabularies", type=int, default=1)
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--hf", action="store_true")
    options.add_argument("--folder")
    asked = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=asked.folder))
    try:
        make = build_hf if asked.hf else build
        files = make(root / "in", asked.files, asked.vocabulary, asked.layers, asked.vocabularies)
        plan = root / "plan.jsonl"
        start = time.monotonic()
        command = [sys.executable, "-m", "ggferry", "plan", root / "in", "-o", plan, "-j", str(asked.jobs), "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        verdicts = json.loads(done.stdout)["verdicts"]
        models = sum(verdicts.values()) - verdicts.get("other", 0)
        print(
            f"{files} files, {verdicts}: {wall:.1f} s wall, {used.ru_utime:.1f} s user CPU, {asked.jobs} processes; "
            f"{1e3 * wall / models:.1f} ms wall and {1e3 * used.ru_utime / models:.1f} ms user CPU a model"
        )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
