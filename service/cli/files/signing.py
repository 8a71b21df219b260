"""The command that signs files, and what `verify` prints of signatures and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.files.sources import known_by
from ggferry.service.cli.options import HeadedCommand, print_json, stage_of, takes, tell
from ggferry.service.operations._signatures import check_signature
from ggferry.service.operations.check_blocks import CheckBlocksRequest
from ggferry.service.operations.check_blocks import run as check
from ggferry.service.operations.sign import SignCommand, run

if TYPE_CHECKING:
    from ggferry.service.operations._json_forms import SignedFile

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(SignCommand)
def sign(request: SignCommand) -> None:
    """Sign, and print the signatures."""
    found = run(request)
    if request.as_json:
        print_json(found)
        return
    for path, signature in found.signatures.items():
        tell(f"signed   {path}: {signature}")


def check_file(file: str, given: Mapping[str, Any]) -> None:
    """Check the signature of a file, or its blocks by a receipt; exit code 6 where something differs."""
    if given["signed"] is not None and given["receipt"] is None and given["sample"] is None:
        if "://" in file:
            hint = "--sample 1%, or --receipt FILE: the receipt's signature, and the blocks by the receipt"
            raise UsageError("--signed: all of a remote file would be fetched", path=file, hint=hint)
        check_signature(file, given["signed"])
        if given["as_json"]:
            signed: SignedFile = {"path": file, "signed": True}
            print_json(signed)
        else:
            tell(f"signed   {known_by(file)}: by this key")
        return
    found = check(
        CheckBlocksRequest(
            file,
            receipt=given["receipt"],
            sample=given["sample"],
            signed=given["signed"],
            cache=given["cache"],
            progress=stage_of(visible=not given["as_json"]),
        )
    )
    if given["as_json"]:
        print_json({"path": file, "same": not found.changed, **asdict(found)})
    else:
        for block in found.changed:
            tell(
                f"differs  {block.file}: block {block.block}, {block.bytes:,} bytes at {block.offset:#x}: "
                f"{', '.join(block.tensors)}"
            )
        if given["signed"] is not None:
            tell("signed   the receipt: by this key")
        tell(
            f"checked  {found.checked:,} of {found.blocks:,} blocks, {found.bytes_read:,} of {found.bytes:,} bytes; "
            f"a single changed block would be found with probability {found.chance:.4g}"
        )
    if found.changed:
        raise VerificationError(
            "not the bytes that its receipt was written for", path=file, found=f"{len(found.changed)} blocks differ"
        )
