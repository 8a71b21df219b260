"""Make `fixtures/biogpt-cpp/`: a tiny BioGPT as biogpt.cpp's convert.py and quantizer write it, and the logits and ids
that biogpt.cpp computes of them.

    git clone --recursive https://github.com/PABannier/biogpt.cpp    # e07668a, ggml f04b02bc
    git clone https://github.com/PABannier/biogpt.cpp may            # 37f4017, of May to October 2023
    python tests/helpers/make_biogpt_fixtures.py biogpt.cpp may

Its loader knows one number of merges, 40000, which is changed here; and it takes the width for the number of positions,
so that both are the same. The graph has no causal mask, so that tokens are computed one at a time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BioGptConfig, BioGptForCausalLM

FIXTURES = Path(__file__).parents[2] / "fixtures"
PROMPT = "COVID-19 is a viral infection of the lung"
TOKENS = [2, 40, 131, 7, 290, 88, 201, 19, 60, 5]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TYPES = {"q4_0": 2, "q5_1": 9, "q8_0": 7}
MAY = {"q4_0": 2, "q5_1": 9}
SOURCES = (
    "ggml/src/ggml.c",
    "ggml/src/ggml-alloc.c",
    "ggml/src/ggml-backend.c",
    "biogpt.cpp",
    "bpe.cpp",
    "mosestokenizer.cpp",
)
MAIN = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "ggml.h"
#include "ggml-alloc.h"
#include "biogpt.h"
int main(int argc, char ** argv) {
    biogpt_vocab vocab; biogpt_model model;
    if (!biogpt_model_load(argv[1], model, vocab, 0)) return 1;
    if (!strcmp(argv[2], "-p")) {
        for (auto token : gpt_tokenize(vocab, argv[3], "en")) printf("%d ", token);
        return 0;
    }
    ggml_allocr * measure = ggml_allocr_new_measure(ggml_backend_get_alignment(model.backend));
    size_t size = ggml_allocr_alloc_graph(measure, biogpt_graph(model, measure, {0}, model.hparams.n_positions - 1));
    ggml_allocr * room = ggml_allocr_new_from_buffer(ggml_backend_alloc_buffer(model.backend, size));
    std::vector<float> logits;
    for (int i = 2; i < argc; i++) {
        biogpt_eval(model, {atoi(argv[i])}, logits, room, i - 2, 1);
        fwrite(logits.data(), sizeof(float), logits.size(), stdout);
    }
    return 0;
}
"""


def checkpoint(folder: Path) -> None:
    """Save the model and its vocabulary: words of a few sentences, each ended by '</w>', with the learner's counts."""
    torch.manual_seed(11)
    config = BioGptConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_act="gelu",
        scale_embedding=True,
        tie_word_embeddings=False,
    )
    model = BioGptForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * (0.1 if parameter.dim() > 1 else 0.3)
    model.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    np.save(folder / "logits.npy", model(torch.tensor([TOKENS])).logits[0].detach().numpy())
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = (FIXTURES.parent / "README.md").read_text().split("\n")
    trained.train_from_iterator(
        [*texts, *[PROMPT] * 9], trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, end_of_word_suffix="</w>")
    )
    model_json = json.loads(trained.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model_json["vocab"]))
    lines = [f"{left} {right} {9000 - rank}" for rank, (left, right) in enumerate(model_json["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")


def build(project: Path, merges: int, folder: Path) -> tuple[Path, Path]:
    """Return the program above and the quantizer."""
    copy = folder / "project"
    shutil.copytree(project, copy)
    header = copy / "biogpt.h"
    header.write_text(header.read_text().replace("= 40000", f"= {merges}"))
    (copy / "logits.cpp").write_text(MAIN)
    include = ["-w", "-O2", "-D_GNU_SOURCE", "-I.", "-Iggml/include", "-Iggml/include/ggml", "-Iggml/src"]
    for source in (*SOURCES, "logits.cpp", "examples/quantize/quantize.cpp"):
        subprocess.run(["gcc" if source.endswith(".c") else "g++", *include, "-c", source], cwd=copy, check=True)
    objects = [f"{Path(source).stem}.o" for source in SOURCES]
    for name in ("logits", "quantize"):
        subprocess.run(["g++", f"{name}.o", *objects, "-o", f"{name}.bin", "-lpthread"], cwd=copy, check=True)
    (copy / "run").mkdir()
    (copy / "run" / "data").symlink_to(copy / "data")  # both `data` and `../data` are looked for
    return copy / "logits.bin", copy / "quantize.bin"


def of_may(project: Path, merges: int, source: Path, folder: Path) -> None:
    """Quantize `source` as the program of May did; its file names have another case than its data."""
    copy = folder / "may"
    shutil.copytree(project, copy)
    header = copy / "biogpt.h"
    header.write_text(header.read_text().replace("= 40000", f"= {merges}"))
    for name in [*(copy / "data" / "perluniprops").glob("Is*.txt")]:
        shutil.copy(name, name.with_name(f"is{name.name[2:]}"))
    files = ("ggml.c", "biogpt.cpp", "bpe.cpp", "mosestokenizer.cpp", "quantize.cpp")
    for file in files:
        command = ["gcc" if file.endswith(".c") else "g++", "-w", "-O2", "-D_GNU_SOURCE", "-mf16c", "-mavx2", "-mfma"]
        subprocess.run([*command, "-I.", "-c", file], cwd=copy, check=True)
    objects = [f"{Path(file).stem}.o" for file in files]
    subprocess.run(["g++", *objects, "-o", "quantize.bin", "-lpthread"], cwd=copy, check=True)
    for name, number in MAY.items():
        command = [
            copy / "quantize.bin",
            "-f",
            source,
            "-o",
            source.with_name(f"{name}-2023-05.bin"),
            "-t",
            str(number),
        ]
        subprocess.run(command, cwd=copy, check=True, capture_output=True)


def main(project: Path, may: Path) -> None:
    """Write the fixtures."""
    out = FIXTURES / "biogpt-cpp"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint(folder / "hf")
        merges = len((folder / "hf" / "merges.txt").read_text().split("\n")) - 1
        run, quantize = build(project.resolve(), merges, folder)
        for name, flag in (("f32", []), ("f16", ["--use-f16"])):
            convert = [sys.executable, "convert.py", "--dir-model", str(folder / "hf"), "--out-dir", str(folder), *flag]
            subprocess.run(convert, cwd=project, check=True, capture_output=True)
            shutil.copy(folder / "ggml-model.bin", out / f"{name}.bin")
        for name, number in TYPES.items():
            command = [quantize, "-f", out / "f32.bin", "-o", out / f"{name}.bin", "-t", str(number)]
            subprocess.run(command, cwd=run.parent / "run", check=True, capture_output=True)
        of_may(may.resolve(), merges, out / "f32.bin", folder)
        for name in ("f32", "f16", *TYPES):
            command = [run, out / f"{name}.bin", *map(str, TOKENS)]
            found = subprocess.run(command, cwd=run.parent / "run", check=True, capture_output=True)
            np.save(out / f"{name}.logits.npy", np.frombuffer(found.stdout, np.float32).reshape(len(TOKENS), -1))
        asked = subprocess.run(
            [run, out / "f32.bin", "-p", PROMPT], cwd=run.parent / "run", check=True, capture_output=True
        )
        for name in ("vocab.json", "merges.txt", "config.json"):
            shutil.copy(folder / "hf" / name, out / name)
        shutil.copy(folder / "hf" / "logits.npy", out / "transformers.logits.npy")
    facts = {"tokens": TOKENS, "prompt": PROMPT, "ids": [int(one) for one in asked.stdout.split()]}
    (out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
