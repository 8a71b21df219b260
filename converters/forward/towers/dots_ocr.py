"""dots.ocr's tower: patches normed, rotated along two axes, normed twice behind the blocks, and merged by squares.

Source: the publisher's `modeling_dots_vision.py`; llama.cpp `tools/mtmd/models/dotsocr.cpp`, `clip.cpp` (`build_vit`,
which norms patches by `v.pre_ln`).
"""

from ggferry.converters.forward.towers._dots import embed, patches

__all__ = ["embed", "patches"]
