"""Types chosen for a size against llama-quantize's mixtures of the same size: KL divergence from the model itself.

    python benchmarks/target_size.py [--seconds 120] [--layers 4] [--width 256] [--imatrix no,yes] [--folder DIR]
    python benchmarks/target_size.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf [--types q2_k,…] [--dither yes,no]
    python benchmarks/target_size.py --gemma3 gemma-3-270m-q4_k_m.gguf [--calibration no,yes] [--prose FOLDER]

A small LLaMA is trained on the project's own pages for so many seconds, from a fixed seed. The mixtures are made by
ggferry, whose bytes are llama-quantize's; for each of them a file of at most its size is made, of types chosen by
measuring. All are compared with the model in F16 on a text that is in neither the training nor the importance matrix.
For how many steps the seconds suffice depends on the machine, and the figures with it. Or SmolLM2 (`smollm2.py`), or
Gemma 3 270M (`gemma3.py`), by docstrings; any of them by prose (`prose.py`). `--calibration yes`: the text of the
importance matrix says what types cost; `--rounding feedback`: and the file chosen for a size is rounded by it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gemma3 import gemma3
from prose import prose
from smollm2 import COMPARED, MEASURED, docstrings, smollm2
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import ggferry

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "fixtures" / "hf" / "ckpt" / "llama_k256"
MIXTURES = ("q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "iq4_xs", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k")
CONTEXT, BATCH, CHUNKS = 128, 4, 48
PARTS = ((0, 1, 2, 3, 4, 5), (6,), (7,))


def texts() -> tuple[str, str, str]:
    """Return texts for the training, the importance matrix and the comparison, which share no page."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/**/*.md"))]
    of = [[page for number, page in enumerate(pages) if number % 8 in some] for some in PARTS]
    return "\n".join(of[0]), "\n".join(of[1]), "\n".join(of[2])


def train(folder: Path, text: str, seconds: float, layers: int, width: int, experts: int = 0) -> str:
    """Train a model on a text for so many processor seconds and save it; return what was done in words.

    A LLaMA; with `experts`, a Mixtral that sends each token to two of them.
    """
    torch.manual_seed(7)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    shape: dict[str, Any] = {
        "vocab_size": 400, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    model: Any
    if experts:
        model = MixtralForCausalLM(MixtralConfig(intermediate_size=2 * width, num_local_experts=experts, **shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(intermediate_size=3 * width, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    begun, steps, loss = time.process_time(), 0, torch.tensor(0.0)
    while time.process_time() - begun < seconds:
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + CONTEXT] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (steps + 1) / 50) * max(0.05, 1 - (time.process_time() - begun) / seconds)
        optimizer.step()
        steps += 1
    model.to(torch.float16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(TOKENIZER / name, folder)
    count = sum(each.numel() for each in model.parameters())
    return f"{count:,} weights, {steps} steps of {BATCH} × {CONTEXT} tokens, last loss {loss.item():.3f}"


def divergences(base: Path, others: Sequence[Path], text: Path, context: int, chunks: int) -> list[float]:
    """Return the mean KL divergences of files from their base, which passes once for all."""
    found = ggferry.compare(base, others[0], text, others=others[1:], context=context, chunks=chunks)
    return [each.chunks[-1].kl_divergence.value for each in (found, *found.others)]


def rows(
    folder: Path,
    base: Path,
    text: Path,
    imatrix: Path | None,
    types: Sequence[str],
    size: tuple[int, int],
    calibration: Path | None = None,
    rounding: str = "stock",
) -> None:
    """Print a row for each mixture: its size and divergence, and those of the file chosen for its size.

    `size`: tokens of a chunk, and chunks. `calibration`: the text by which what errors count for is measured.
    """
    by_text = ", errors counted by a text" if calibration else ""
    print(f"\n{'with' if imatrix else 'without'} an importance matrix{by_text}")
    print("| mixture | bytes | KLD | chosen, bytes | KLD | ratio |\n|---|---|---|---|---|---|")
    options: dict[str, Any] = {"imatrix": imatrix, "verify": "none", "force": True}
    files = []
    for mixture in types:
        theirs, ours = folder / f"{mixture}.gguf", folder / f"{mixture}-sized.gguf"
        ggferry.quantize(base, theirs, mixture, **options)
        sized = {"target_size": theirs.stat().st_size, "measurements": str(folder / "measurements")}
        ggferry.quantize(base, ours, **sized, calibration=calibration, rounding=rounding, **options)
        files += [theirs, ours]
    found = divergences(base, files, text, *size)
    ratios = []
    for number, mixture in enumerate(types):
        (theirs, ours), (one, other) = files[2 * number : 2 * number + 2], found[2 * number : 2 * number + 2]
        ratios.append(other / one)
        line = f"| {mixture.upper()} | {theirs.stat().st_size:,} | {one:.5f} | {ours.stat().st_size:,} | {other:.5f} |"
        print(f"{line} {ratios[-1]:.2f} |", flush=True)
    print(f"mean ratio {sum(ratios) / len(ratios):.3f}")


def tables(folder: Path, model: Path, texts_of: tuple[str, str], arguments: Any, size: tuple[int, int]) -> None:
    """Print a table without an importance matrix and one with it, as asked for."""
    (folder / "measure.txt").write_text(texts_of[0], encoding="utf-8")
    (folder / "compare.txt").write_text(texts_of[1], encoding="utf-8")
    base, matrix = folder / "base.gguf", folder / "imatrix.gguf"
    ggferry.convert(model, base, outtype="f16", verify="none", force=True)
    if "yes" in arguments.imatrix:
        command = [sys.executable, "-m", "ggferry", "imatrix", base, "--text", folder / "measure.txt", "-o", matrix]
        subprocess.run([*map(str, command), "--chunk-size", str(size[0]), "--force"], check=True, capture_output=True)
    of = folder, base, folder / "compare.txt"
    for each in arguments.imatrix.split(","):
        for by_text in arguments.calibration.split(","):
            text = folder / "measure.txt" if by_text == "yes" else None
            rounding = arguments.rounding if text else "stock"
            rows(*of, matrix if each == "yes" else None, arguments.types.split(","), size, text, rounding)


def main() -> None:
    """Train, quantize, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--imatrix", default="no,yes")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf, in place of training")
    parser.add_argument("--gemma3", type=Path, help="gemma-3-270m-q4_k_m.gguf, in place of training")
    parser.add_argument("--dither", default="yes", help="SmolLM2 with its weights moved (yes), as it is (no)")
    parser.add_argument(
        "--calibration", default="no,yes", help="what errors count for measured on a text (yes), as usual (no)"
    )
    parser.add_argument("--rounding", default="stock", help="how the chosen files are rounded where there is a text")
    parser.add_argument("--prose", type=Path, help="the folder of Debian's fortunes, in place of docstrings")
    parser.add_argument("--compare", type=int, help="chunks that are compared")
    parser.add_argument("--types", default=",".join(MIXTURES))
    parser.add_argument("--folder", help="where the files are made")
    parser.add_argument("--keep", action="store_true", help="leave the files")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=arguments.folder))
    try:
        size = 512, arguments.compare or 6
        measured, compared = prose(arguments.prose) if arguments.prose else (docstrings(MEASURED), docstrings(COMPARED))
        texts_of = measured[:60_000], compared
        if arguments.gemma3:
            tables(folder, gemma3(folder, arguments.gemma3), texts_of, arguments, size)
        elif arguments.smollm2:
            for moved in arguments.dither.split(","):
                print(f"\nSmolLM2-135M{', its weights moved within their steps' if moved == 'yes' else ''}", flush=True)
                tables(folder, smollm2(folder, arguments.smollm2, moved == "yes"), texts_of, arguments, size)
        else:
            (folder / "model").mkdir()
            training, *others = texts()
            print(train(folder / "model", training, arguments.seconds, arguments.layers, arguments.width), flush=True)
            size = CONTEXT, arguments.compare or CHUNKS
            tables(folder, folder / "model", texts_of if arguments.prose else (others[0], others[1]), arguments, size)
        print(f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())}")
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
