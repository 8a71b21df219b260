"""Vision and audio encoders: one module a tower with its projector, named by a recipe's `vision` or `audio`.

A module has `embed(tower, given, progress)`, which returns the rows that the text model reads in place of tokens,
float32 `(rows, width)`. `given` is a normalized picture `(3, height, width)`, or a spectrum `(channels, frames)`.
`tower` is the model as this modality sees it (`Model.tower`). A module may say how large the fixed picture or spectrum
of a proof is: `patches(tower)` returns rows and columns of patches, `frames(tower)` the frames.
"""
