"""The commands that are interfered with: what lies in the folder before, and what may change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Scenario:
    """A command in a folder of its own.

    Attributes:
        command: Its arguments; `@` stands for the folder.
        lay: Copies into the folder what the command works on, from `material` (tests/faults/material.py).
        replaced: Names that stand there before and are replaced: all of the old ones or all of the new ones stand.
        first: Of shards, the file that loaders open: where it stands, the others are of its generation.
        no_flags: Whether the file system knows neither link(2) nor the flags of renameat2(2).
    """

    command: Sequence[str]
    lay: Callable[[Path, Path], None]
    replaced: Sequence[str] = field(default=())
    first: str = ""
    no_flags: bool = False


def copies(*names: str) -> Callable[[Path, Path], None]:
    """Return a function that copies files and folders of the material; `a>b` renames, `a/*` copies what is in it."""

    def lay(material: Path, folder: Path) -> None:
        for name in names:
            source, _, target = name.partition(">")
            if source.endswith("/*"):
                for path in sorted((material / source[:-2]).iterdir()):
                    _copy(path, folder / target / path.name)
            else:
                _copy(material / source, folder / (target or Path(source).name))

    return lay


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


FAST = ("-j", "1", "--verify", "fast")
GROW = "general.description=" + "x" * 5000
SPLIT = ("--split-max-tensors", "12")
RECEIPT = ".receipt.json"
SHARDS = tuple(f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3))
OLD_SHARDS = (*SHARDS, SHARDS[0] + RECEIPT)
PAIR = ("m.gguf", "m.gguf" + RECEIPT)
OUTTYPES = tuple(f"m-{kind}.gguf{end}" for kind in ("f16", "q8_0", "bf16") for end in ("", RECEIPT))
VISION_ENCODERS = tuple(f"{name}{end}" for name in ("v.gguf", "mmproj-v.gguf") for end in ("", RECEIPT))
FOLDER = tuple(
    f"f/{name}"
    for name in (
        "README.md",
        "config.json",
        "generation_config.json",
        "ggferry.receipt.json",
        "model.safetensors",
        "tokenizer.model",
        "tokenizer_config.json",
    )
)
RENAMED = ("--rename-tensor", "blk.1.ffn_up.weight=blk.1.ffn_other.weight", "--allow-broken")
BOTH = ("--mmproj", "both", "--no-vocab")
OUT_LADDER = ("-o", "@/m-{outtype}.gguf", "--outtype", "f16,q8_0,bf16")

SCENARIOS: dict[str, Scenario] = {
    "convert": Scenario(("convert", "@/s.bin", "-o", "@/m.gguf", "--outtype", "q8_0", *FAST), copies("s.bin")),
    "convert-force": Scenario(
        ("convert", "@/s.bin", "-o", "@/m.gguf", "--outtype", "q8_0", "--force", *FAST),
        copies("s.bin", "old/*"),
        PAIR,
    ),
    "shards": Scenario(("convert", "@/s.bin", "-o", "@/m.gguf", *SPLIT, *FAST), copies("s.bin")),
    "shards-force": Scenario(
        ("convert", "@/s.bin", "-o", "@/m.gguf", *SPLIT, "--outtype", "q8_0", "--force", *FAST),
        copies("s.bin", "oldshards/*"),
        OLD_SHARDS,
        SHARDS[0],
    ),
    "shards-force-without-links": Scenario(
        ("convert", "@/s.bin", "-o", "@/m.gguf", *SPLIT, "--outtype", "q8_0", "--force", *FAST),
        copies("s.bin", "oldshards/*"),
        OLD_SHARDS,
        SHARDS[0],
        no_flags=True,
    ),
    "ladder": Scenario(("convert", "@/s.bin", *OUT_LADDER, *FAST), copies("s.bin")),
    "ladder-force": Scenario(
        ("convert", "@/s.bin", *OUT_LADDER, "--force", *FAST), copies("s.bin", "oldladder/*"), OUTTYPES
    ),
    "mmproj": Scenario(("convert", "@/eyes", "-o", "@/v.gguf", *BOTH, *FAST), copies("eyes")),
    "mmproj-force": Scenario(
        ("convert", "@/eyes", "-o", "@/v.gguf", *BOTH, "--force", *FAST), copies("eyes", "oldeyes/*"), VISION_ENCODERS
    ),
    "quantize": Scenario(("quantize", "@/m.gguf", "@/q.gguf", "q8_0", "--verify", "fast"), copies("one/*")),
    "edit-in-place": Scenario(("edit", "@/m.gguf", "--set", "general.name=Tin", "--in-place"), copies("one/*"), PAIR),
    "edit-in-place-anew": Scenario(("edit", "@/m.gguf", "--set", GROW, "--in-place"), copies("one/*"), PAIR),
    "edit-in-place-bare": Scenario(
        ("edit", "@/m.gguf", "--set", GROW, "--in-place"), copies("one/m.gguf"), ("m.gguf",)
    ),
    "edit": Scenario(("edit", "@/m.gguf", "--set", "general.name=Tin", "--outfile", "@/e.gguf"), copies("one/*")),
    "edit-shards": Scenario(
        ("edit", f"@/{SHARDS[0]}", "--set", "general.name=Tin", *RENAMED, "--outfile", "@/e.gguf"),
        copies(*(f"oldshards/{name}" for name in SHARDS)),
    ),
    "edit-shards-force": Scenario(
        ("edit", f"@/s/{SHARDS[0]}", "--set", "general.name=Tin", "--outfile", "@/m.gguf", "--force"),
        copies("newshards/*>s", "oldshards/*"),
        OLD_SHARDS,
        SHARDS[0],
    ),
    "split": Scenario(("split", "@/m.gguf", *SPLIT), copies("one/m.gguf")),
    "split-force": Scenario(
        ("split", "@/m.gguf", *SPLIT, "--force"), copies("one/*", "oldshards/*"), OLD_SHARDS, SHARDS[0]
    ),
    "merge": Scenario(("merge", f"@/{SHARDS[0]}", "--outfile", "@/w.gguf"), copies("oldshards/*")),
    "join": Scenario(("merge", "@/m.gguf.part1of2", "--outfile", "@/w.gguf"), copies("pieces/*")),
    "hash": Scenario(("hash", "@/m.gguf"), copies("one/*")),
    "imatrix": Scenario(
        ("imatrix", "@/m.gguf", "--text", "@/text.txt", "-o", "@/i.gguf", "--chunk-size", "32"),
        copies("one/*", "text.txt"),
    ),
    "safetensors": Scenario(("convert", "@/m.gguf", "--to", "safetensors", "-o", "@/f", *FAST), copies("one/*")),
    "safetensors-without-links": Scenario(
        ("convert", "@/m.gguf", "--to", "safetensors", "-o", "@/f", *FAST), copies("one/*"), no_flags=True
    ),
    "safetensors-force": Scenario(
        ("convert", "@/m.gguf", "--to", "safetensors", "-o", "@/f", "--dtype", "f16", "--force", *FAST),
        copies("one/*", "folder>f"),
        FOLDER,
    ),
    "safetensors-force-without-links": Scenario(
        ("convert", "@/m.gguf", "--to", "safetensors", "-o", "@/f", "--dtype", "f16", "--force", *FAST),
        copies("one/*", "folder>f"),
        FOLDER,
        no_flags=True,
    ),
    "plan": Scenario(("plan", "@/archive", "-o", "@/plan.jsonl", "--dest", "@/new"), copies("s.bin>archive/s.bin")),
}
