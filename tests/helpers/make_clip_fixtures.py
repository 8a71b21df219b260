"""Make `fixtures/clip-cpp/`: tiny CLIP models as clip.cpp's scripts and quantizers write them, and what it computes.

    git clone https://github.com/monatis/clip.cpp     # 8c92e21 with ggml dd1d575, 3484ffc with ggml c3ae31e
    git clone https://github.com/ggerganov/ggml
    python tests/helpers/make_clip_fixtures.py clip.cpp ggml

The files of 19 June 2023 have no activation in their header (a12792d). Both programs are compiled as they are, but for
the room that they give to models of three known sizes, and rows of blocks that must have 64 columns, with a `main` of
ours: it gives them token ids and a picture, and prints both embeddings as they are before normalization.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

FIXTURES = Path(__file__).parents[2] / "fixtures" / "clip-cpp"
OLD, BEFORE, AFTER = "a12792d", "8c92e21", "3484ffc"
GGML = {BEFORE: "dd1d575", AFTER: "c3ae31e"}
TEXT = "a red apple on the table, and a white cup"
START, END = "<|startoftext|>", "<|endoftext|>"
IMAGE = 32
QUANTIZED = {BEFORE: {"q4_0": 2, "q4_1": 3}, AFTER: {"q4_0": 2, "q5_0": 6, "q5_1": 7, "q8_0": 8}}
ROOM = ".mem_size = model_mem_req"
MAIN = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "clip.h"
int main(int argc, char ** argv) {
    clip_ctx * ctx = clip_model_load(argv[1], 0);
    if (!ctx) return 1;
    std::vector<clip_vocab_id> ids;
    for (int i = 3; i < argc; i++) ids.push_back(atoi(argv[i]));
    clip_tokens tokens{ids.data(), ids.size()};
    std::vector<float> pixels(3 * 32 * 32), vec(clip_get_text_hparams(ctx)->projection_dim);
    FILE * file = fopen(argv[2], "rb");
    if (fread(pixels.data(), 4, pixels.size(), file) != pixels.size()) return 2;
    clip_image_f32 picture{32, 32, pixels.data(), pixels.size()};
    if (!clip_text_encode(ctx, 1, &tokens, vec.data(), false)) return 3;
    fwrite(vec.data(), 4, vec.size(), stdout);
    if (!clip_image_encode(ctx, 1, &picture, vec.data(), false)) return 4;
    fwrite(vec.data(), 4, vec.size(), stdout);
    return 0;
}
"""


def vocabulary(folder: Path) -> dict[str, int]:
    """Write vocab.json and merges.txt: bytes, bytes that end a word, what 40 merges make of them, two special tokens.

    That is the order of CLIP's own.
    """
    words = [[*word[:-1], f"{word[-1]}</w>"] for word in (TEXT.replace(",", " ,") + " the apples tabled").split()]
    letters = sorted(
        {letter.removesuffix("</w>") for word in words for letter in word} | set("0123456789.é"[:-1]) | {"Ã"}
    )
    merges: list[tuple[str, str]] = []
    while len(merges) < 40:
        counts: dict[tuple[str, str], int] = {}
        for word in words:
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for word in words:
            for at in range(len(word) - 2, -1, -1):
                if tuple(word[at : at + 2]) == best:
                    word[at : at + 2] = ["".join(best)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), START, END]
    found = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{lines}", encoding="utf-8")
    return found


def checkpoint(folder: Path, activation: str) -> None:
    """Save a model, its vocabulary and the settings of its pictures."""
    folder.mkdir()
    vocab = vocabulary(folder)
    torch.manual_seed(len(activation))
    half = {"num_attention_heads": 4, "hidden_act": activation, "projection_dim": 64}
    ids = {"bos_token_id": vocab[START], "eos_token_id": vocab[END], "pad_token_id": vocab[END]}
    text = {"vocab_size": len(vocab), "max_position_embeddings": 24, "hidden_size": 32, "num_hidden_layers": 2}
    pictures = {"image_size": IMAGE, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2}
    config = CLIPConfig(
        text_config={**half, **ids, **text, "intermediate_size": 64},
        vision_config={**half, **pictures, "intermediate_size": 64},
        projection_dim=64,
    )
    model = CLIPModel(config).eval()
    for name, parameter in model.named_parameters():
        scale = 0.12 if parameter.dim() > 1 else 0.25
        if name != "logit_scale":
            parameter.data = torch.randn_like(parameter) * scale + (1 if "norm" in name and "weight" in name else 0)
    model.save_pretrained(folder)
    CLIPImageProcessor(
        size={"shortest_edge": IMAGE}, crop_size=IMAGE, image_mean=[0.5, 0.45, 0.4], image_std=[0.25, 0.26, 0.27]
    ).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')


def computed(folder: Path, ids: list[int], picture: np.ndarray) -> np.ndarray:
    """Return what transformers computes of both: the embeddings, `(2, 64)`."""
    model = CLIPModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        text = model.text_projection(model.text_model(torch.tensor([ids])).pooler_output)
        seen = model.visual_projection(model.vision_model(torch.from_numpy(picture)[None]).pooler_output)
    return torch.cat((text, seen)).numpy()


def export(project: Path, commit: str, folder: Path, *paths: str) -> None:
    """Unpack a commit of a repository, or these paths of it."""
    folder.mkdir(parents=True)
    tar = subprocess.run(["git", "archive", commit, *paths], cwd=project, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, check=True, input=tar)


def build(project: Path, ggml: Path, commit: str, folder: Path) -> tuple[Path, Path]:
    """Return the program above and the quantizer."""
    export(project, commit, folder)
    shutil.rmtree(folder / "ggml", ignore_errors=True)
    export(ggml, GGML[commit], folder / "lib", "include", "src")
    (folder / "ggml").symlink_to(folder / "lib" / "include" / "ggml")
    (folder / "own.cpp").write_text(MAIN)
    code, size = (folder / "clip.cpp").read_text(), "size_t mb = 1024 * 1024;"
    code = code.replace(size, f"{size} return 64 * mb;").replace("% 64 ==", "% 32 ==")
    (folder / "clip.cpp").write_text(code.replace(ROOM, f"{ROOM} + (1 << 20)"))
    flags = ["-w", "-O1", "-D_GNU_SOURCE", "-I.", "-Iggml", "-Ilib/include", "-Ilib/include/ggml", "-Ilib/src"]
    sources = ["lib/src/ggml.c", "clip.cpp", "own.cpp", "models/quantize.cpp"]
    sources += [name for name in ("lib/src/ggml-alloc.c", "lib/src/ggml-backend.c") if (folder / name).exists()]
    for source in sources:
        compiler = "gcc" if source.endswith(".c") else "g++"
        subprocess.run([compiler, *flags, "-c", source], cwd=folder, check=True)
    objects = [f"{Path(name).stem}.o" for name in sources if name not in ("own.cpp", "models/quantize.cpp")]
    for name in ("own", "quantize"):
        subprocess.run(["g++", f"{name}.o", *objects, "-o", f"{name}.bin", "-lpthread"], cwd=folder, check=True)
    return folder / "own.bin", folder / "quantize.bin"


def script(project: Path, commit: str, name: str, folder: Path, *arguments: str) -> None:
    """Run a script of a commit."""
    text = subprocess.run(["git", "show", f"{commit}:models/{name}"], cwd=project, check=True, capture_output=True)
    path = folder / f"{commit}-{name}"
    path.write_bytes(text.stdout)
    subprocess.run([sys.executable, str(path), *arguments], check=True, capture_output=True)


def main(project: Path, ggml: Path) -> None:
    """Write the fixtures."""
    FIXTURES.mkdir(exist_ok=True)
    facts: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        picture = np.random.default_rng(5).standard_normal((3, IMAGE, IMAGE)).astype(np.float32)
        picture.transpose(1, 2, 0).tofile(folder / "picture.raw")
        np.save(FIXTURES / "picture.npy", picture)
        for activation in ("quick_gelu", "gelu"):
            home = folder / activation
            checkpoint(home, activation)
            vocab = json.loads((home / "vocab.json").read_text(encoding="utf-8"))
            words = ("a</w>", "red</w>", "apple</w>", "on</w>", "the</w>", "table</w>", "cup</w>")
            ids = [vocab[START], *(vocab[word] for word in words if word in vocab), vocab["c"], vocab[END]]
            facts["ids"] = ids
            np.save(FIXTURES / f"{activation}.npy", computed(home, ids, picture))
        (FIXTURES / "facts.json").write_text(json.dumps(facts) + "\n")
        for name in (
            "config.json",
            "preprocessor_config.json",
            "vocab.json",
            "merges.txt",
            "tokenizer_config.json",
            "model.safetensors",
        ):
            (FIXTURES / "checkpoint").mkdir(exist_ok=True)
            shutil.copy(folder / "quick_gelu" / name, FIXTURES / "checkpoint" / name)
        home = folder / "quick_gelu"
        files = []
        script(project, OLD, "convert_hf_to_ggml.py", folder, str(home), "1")
        files.append((home / "ggml-model-f16.bin").rename(FIXTURES / "f16-2023-06-19.bin"))
        for kind, activation, number in (("f16", "quick_gelu", "1"), ("f32-gelu", "gelu", "0")):
            script(project, BEFORE, "convert_hf_to_ggml.py", folder, str(folder / activation), number)
            made = folder / activation / f"ggml-model-{kind[:3]}.bin"
            files.append(made.rename(FIXTURES / f"{kind}.bin"))
        for half, flags in (("", []), ("text-", ["--text-only"]), ("vision-", ["--vision-only"])):
            script(project, AFTER, "convert_hf_to_gguf.py", folder, "-m", str(home), "-o", str(folder), *flags)
            made = next(folder.glob(f"*_ggml-{half}model-f16.gguf")).rename(FIXTURES / f"{half}f16.gguf")
            files += [made] if not half else []
        programs = {commit: build(project, ggml, commit, folder / commit) for commit in GGML}
        for commit, kinds in QUANTIZED.items():
            ending = ".bin" if commit == BEFORE else ".gguf"
            for kind, number in kinds.items():
                out = FIXTURES / f"{kind}{ending}"
                command = [programs[commit][1], FIXTURES / f"f16{ending}", out, str(number)]
                subprocess.run(command, check=True, capture_output=True)
                files.append(out)
        for path in files:
            if path.name in ("f16-2023-06-19.bin", "f32-gelu.bin"):
                continue  # the same values as f16.bin; and its programs take no patches in float32
            run = programs[AFTER if path.suffix == ".gguf" else BEFORE][0]
            command = [run, path, folder / "picture.raw", *map(str, facts["ids"])]
            found = subprocess.run(command, check=True, capture_output=True).stdout
            np.save(path.with_name(f"{path.name}.npy"), np.frombuffer(found[-512:], np.float32).reshape(2, 64))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
