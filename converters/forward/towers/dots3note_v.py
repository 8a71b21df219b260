"""Dots 3 Note's vision encoder: dots.ocr's with normed heads, and of experts in the later blocks.

Definition: transformers `modeling_dots3_note.py` (`Dots3NoteVisionModel`); llama.cpp `tools/mtmd/models/dotsocr.cpp`.
"""

from ggferry.converters.forward.towers._dots import embed, patches

__all__ = ["embed", "patches"]
