"""Make `fixtures/llama2c/` and `fixtures/llmc/`: models and tokenizers that the projects' own scripts write, and logits
that their own C programs compute.

    git clone https://github.com/karpathy/llama2.c    # 350e04fe35433e6d2941dce5a1f53308f87058eb
    git clone https://github.com/karpathy/llm.c       # f1e2ace651495b74ae22d45d1723443fd00ecd3a
    python tests/helpers/make_teaching_fixtures.py llama2.c llm.c

`pad_vocab` of train_gpt2.py is taken without its check that the vocabulary is GPT-2's own.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import sentencepiece
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEXTS = ["Once upon a time", "A bird, 42 foxes & the sun.", "  two  spaces", "naïve café ☕"]
TOKENS = [1, 300, 47, 290, 5, 299, 262, 281]
LLAMA_MAIN = """
#define TESTING
#include "%s"
int main(int argc, char** argv) {
    Transformer model;
    build_transformer(&model, argv[1]);
    for (int i = 2; i < argc; i++)
        fwrite(forward(&model, atoi(argv[i]), i - 2), sizeof(float), model.config.vocab_size, stdout);
    return 0;
}
"""
ENCODE_MAIN = """
#define TESTING
#include "run.c"
int main(int argc, char** argv) {
    Tokenizer tokenizer;
    build_tokenizer(&tokenizer, argv[1], atoi(argv[2]));
    int ids[4096], count;
    encode(&tokenizer, argv[3], 0, 0, ids, &count);
    for (int i = 0; i < count; i++) printf("%d ", ids[i]);
    return 0;
}
"""
GPT_MAIN = """
#define TESTING
#include "train_gpt2.c"
int main(int argc, char** argv) {
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    int ids[64], count = argc - 3;
    for (int i = 0; i < count; i++) ids[i] = atoi(argv[i + 3]);
    gpt2_forward(&model, ids, NULL, 1, count);
    FILE* out = fopen(argv[2], "wb");
    fwrite(model.acts.logits, sizeof(float), (size_t)count * model.config.padded_vocab_size, out);
    fclose(out);
    return 0;
}
"""


def load(folder: Path, name: str) -> ModuleType:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def build(folder: Path, text: str, scratch: Path, name: str) -> Path:
    source, program = folder / f"{name}_main.c", scratch / name
    source.write_text(text)
    subprocess.run(["gcc", "-O1", "-w", "-I", folder, source, "-o", program, "-lm"], check=True)
    return program


def train_pieces(target: Path) -> None:
    """A SentencePiece model as llama2.c's tinystories.py trains it, of the lines of our corpus that are ASCII."""
    lines = [line for line in (FIXTURES / "tokenizers" / "corpus.txt").read_text().splitlines() if line.isascii()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(target), model_type="bpe", vocab_size=400,
        self_test_sample_size=0, character_coverage=1.0, split_digits=True, allow_whitespace_only_pieces=True,
        byte_fallback=True, unk_surface=r" \\342\\201\\207 ", normalization_rule_name="identity",
    )  # fmt: skip
    target.with_suffix(".vocab").unlink()


def llama2c(folder: Path, scratch: Path) -> None:
    out = FIXTURES / "llama2c"
    out.mkdir(exist_ok=True)
    train_pieces(out / "tokenizer")
    load(folder, "tokenizer").Tokenizer(str(out / "tokenizer.model")).export()
    export = load(folder, "export")
    programs = {name: build(folder, LLAMA_MAIN % f"{name}.c", scratch, name) for name in ("run", "runq")}
    encode = build(folder, ENCODE_MAIN, scratch, "encode")
    writers: dict[str, Any] = {
        "v0": export.legacy_export, "v0-unshared": export.legacy_export, "v1": export.version1_export,
        "v2": lambda model, path: export.version2_export(model, path, 32),
    }  # fmt: skip
    facts: dict[str, Any] = {"tokens": TOKENS, "texts": {}}
    for name, write in writers.items():
        torch.manual_seed(7)
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 64, "max_seq_len": 24}
        model = export.Transformer(export.ModelArgs(vocab_size=400, **sizes))
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.1
        if name.endswith("unshared"):
            model.output.weight = torch.nn.Parameter(model.output.weight + 0.1 * torch.randn(400, 32))
        write(model, str(out / f"{name}.bin"))
    for name, program in {"v0": "run", "v0-unshared": "run", "v2": "runq"}.items():
        line = [programs[program], out / f"{name}.bin", *map(str, TOKENS)]
        done = subprocess.run(line, capture_output=True, check=True).stdout
        np.save(out / f"{name}.logits.npy", np.frombuffer(done, np.float32).reshape(len(TOKENS), 400))
    for text in TEXTS:
        line = [str(encode), str(out / "tokenizer.bin"), "400", text]
        ids = subprocess.run(line, capture_output=True, check=True).stdout.split()
        facts["texts"][text] = [int(each) for each in ids]
    (out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


def train_bytes() -> tuple[Tokenizer, SimpleNamespace]:
    """A byte-level BPE vocabulary with GPT-2's pre-tokenizer, and as what train_gpt2.py takes for one of tiktoken."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(FIXTURES / "tokenizers" / "corpus.txt")], trainer)
    letters = {value: character for character, value in spelled().items()}
    texts = [bytes(letters_of(tokenizer.id_to_token(i), letters)) for i in range(320)]
    texts.append(b"<|endoftext|>")
    given = SimpleNamespace(max_token_value=320, eot_token=320, decode_bytes=lambda ids: texts[ids[0]])
    return tokenizer, given


def spelled() -> dict[str, int]:
    """GPT-2's letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {chr(256 + n): value for n, value in enumerate(rest)}


def letters_of(text: str, letters: dict[int, str]) -> list[int]:
    values = {character: value for value, character in letters.items()}
    return [values[character] for character in text]


def llmc(folder: Path, scratch: Path) -> None:
    out = FIXTURES / "llmc"
    out.mkdir(exist_ok=True)
    train = load(folder, "train_gpt2")
    train.pad_vocab = lambda rows: torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % 128))
    tokenizer, given = train_bytes()
    train.write_tokenizer(given, str(out / "gpt2_tokenizer.bin"))
    torch.manual_seed(11)
    model = train.GPT(train.GPTConfig(block_size=24, vocab_size=321, n_layer=2, n_head=4, n_embd=32))
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    for kind in ("float32", "bfloat16"):
        train.write_model(model, str(out / f"{kind}.bin"), kind)
    program = build(folder, GPT_MAIN, scratch, "gpt")
    subprocess.run([program, out / "float32.bin", scratch / "logits", *map(str, TOKENS)], check=True)
    logits = np.fromfile(scratch / "logits", np.float32).reshape(len(TOKENS), 384)[:, :321]
    np.save(out / "float32.logits.npy", logits)
    export = load(folder / "dev" / "eval", "export_hf")
    export.GPT2Tokenizer = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(save_pretrained=lambda _: None))
    export.convert(str(out / "bfloat16.bin"), str(scratch / "hf"), out_dtype="float32")
    exported = export.GPT2LMHeadModel.from_pretrained(scratch / "hf").eval()
    with torch.no_grad():
        np.save(out / "bfloat16.logits.npy", exported(torch.tensor([TOKENS])).logits[0].numpy())
    facts = {"tokens": TOKENS, "texts": {text: tokenizer.encode(text).ids for text in TEXTS}}
    (out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        llama2c(Path(sys.argv[1]).resolve(), Path(name))
        llmc(Path(sys.argv[2]).resolve(), Path(name))
