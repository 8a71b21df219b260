"""Make fixtures/uqff: `hf/ckpt/llama3_rope_tied` as mistral.rs itself writes it, in two types.

Run once, in an environment with mistralrs==0.9.5 alone: `python tests/helpers/make_uqff_fixture.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"
SOURCE, OUT = FIXTURES / "hf/ckpt/llama3_rope_tied", FIXTURES / "uqff"
NAMES = {"q8_0": "Q8_0", "q4_0": "Q4_0", "afq4": "AFQ4"}
KEPT = ("residual.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")


def main() -> None:
    """Write the fixtures: every quantization in one folder, as repositories of mistral.rs have them."""
    from mistralrs import Runner, Which  # type: ignore[import-not-found]

    OUT.mkdir(exist_ok=True)
    for name, kind in NAMES.items():
        with tempfile.TemporaryDirectory() as place:
            Runner(which=Which.Plain(model_id=str(SOURCE), write_uqff=f"{place}/{name}.uqff"), in_situ_quant=kind)
            shutil.copy(f"{place}/{name}-0.uqff", OUT)
            for each in KEPT:
                shutil.copy(f"{place}/{each}", OUT)


if __name__ == "__main__":
    main()
