"""A folder that MLX loads: that of transformers, with matrices as integers, scales and biases.

It is proved as that is: opened as a source, by the scheme of MLX's checkpoints, and compared with what it was made of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ggferry.converters.conversion.kinds.hf_folder import TAKES, HfFolderKind
from ggferry.converters.conversion.kinds.kind import check_options
from ggferry.converters.conversion.request import MLX_FOLDER, Request
from ggferry.converters.hf_export.plan import Form
from ggferry.converters.mlx_folder.form import KEEP, form_of
from ggferry.formats.errors import UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.quant.affine_groups import ENCODED


class MlxFolderKind(HfFolderKind):
    """A folder for MLX."""

    name = MLX_FOLDER
    takes: Collection[str] = TAKES | {"outtype", "allow_requantize"}

    @property
    def outtypes(self) -> Sequence[str]:
        """Those that MLX has groups for."""
        return (KEEP, *ENCODED)

    def check(self, request: Request) -> None:
        """Raise UsageError for an option that only GGUF has, and for a type that MLX has no groups for."""
        check_options(request, self.takes)
        requested = request.options.outtype
        if requested.lower() not in self.outtypes:
            raise UsageError("--outtype of an MLX folder", found=requested, expected=", ".join(self.outtypes))

    def form(self, request: Request) -> Form:
        """Return the form for MLX."""
        return form_of(request.options.outtype, request.options.allow_requantize)

    def own_options(self, request: Request) -> JSONObject:
        """Return the types that matrices are encoded to."""
        return {"outtype": request.options.outtype, "allow_requantize": request.options.allow_requantize}
