"""The commands that look at all of a model: hash, diff; and `verify` of one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggferry.converters.conversion.options import options_of
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.sources import known_by
from ggferry.service.cli.options import HeadedCommand, access_of, offers, print_json, say, tell

if TYPE_CHECKING:
    from ggferry.support.progress import Stage

commands = typer.Typer(rich_markup_mode=None)

MODEL = "A model of any container; a path or a URL."
CORRUPT = 5
ALONE = ("level", "as_json", "cache", "follow_redirects")
"""The options of `verify` that say something of a file alone."""


@commands.command("hash", cls=HeadedCommand)
@offers("hash")
def hash_(
    file: Annotated[str, typer.Argument(parser=Named, help=MODEL)],
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", metavar="NAME", help="sha256 (the default), blake3, sha1, xxh64, uuid."),
    ] = None,
    no_layer: Annotated[bool, typer.Option("--no-layer", help="Only the digest of all tensors together.")] = False,
    check: Annotated[
        str | None,
        typer.Option("--check", "-c", metavar="MANIFEST", help="Compare with what was written down, by its strongest."),
    ] = None,
    **given: Any,
) -> None:
    """Digest every tensor, and all together: little-endian data without padding, in llama-gguf-hash's manifest.

    Metadata, alignment, byte order and shards make no difference; to the digest of all, the order of the tensors does.
    """
    from ggferry.converters.analysis.differences.hashes import DEFAULT, digests
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with access_of(file, given) as path:
        checkpoint = open_checkpoint(path)
        total = sum(ref.nbytes for ref in checkpoint.tensors.values())
        if check is not None:
            _check(checkpoint, check, algorithm, total, path.staged(_stage(given)), given["as_json"])
            return
        name, found = known_by(checkpoint.path), []
        with path.staged(_stage(given))(_checking(), total) as progress:
            for each in digests(checkpoint, algorithm or [DEFAULT], tensors=not no_layer, progress=progress):
                if given["as_json"]:
                    found.append({"algorithm": each.algorithm, "tensor": each.tensor, "digest": each.hex})
                else:
                    tell(each.line(name))
        path.check_unchanged()
        checkpoint.close()
    if given["as_json"]:
        print_json({"path": name, "digests": found})


def _check(checkpoint: Any, manifest: str, algorithm: list[str] | None, total: int, stage: Stage, quiet: bool) -> None:
    from dataclasses import asdict

    from ggferry.converters.analysis.differences.hashes import check, read_manifest
    from ggferry.formats.files.named_texts import text_of

    if algorithm and len(algorithm) > 1:
        raise UsageError("--algorithm: one is compared", found=algorithm[1])
    stated = read_manifest(text_of(manifest), manifest, checkpoint.tensors)
    with stage(_checking(), total) as progress:
        found = check(checkpoint, stated, algorithm[0] if algorithm else None, progress)
    name = known_by(checkpoint.path)
    checkpoint.close()
    if quiet:
        print_json({"path": name, "holds": found.holds, **asdict(found)})
    else:
        for tensor in found.wrong:
            tell(f"differs  {tensor or 'all tensors together'}")
        for tensor in found.absent:
            tell(f"absent   {tensor}")
    if found.wrong or found.absent or not found.right:
        wrong = (
            f"{len(found.wrong)} of {len(found.wrong) + found.right} digests differ, {len(found.absent)} tensors absent"
        )
        raise VerificationError("not what the manifest says", path=name, found=wrong)
    if found.unstated:  # llama-gguf-hash fails here too
        raise VerificationError(
            f"{found.right} digests are as the manifest says, but it does not list every tensor", path=name,
            found=f"{len(found.unstated)} tensors that are not in the manifest: {_first_names(found.unstated)}",
        )  # fmt: skip
    if not quiet:
        tell(f"{name}: {found.right} digests ({found.algorithm}) as the manifest says")


def _first_names(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@commands.command(cls=HeadedCommand)
@offers("diff")
def diff(
    first: Annotated[str, typer.Argument(parser=Named, help=MODEL)],
    second: Annotated[str, typer.Argument(parser=Named, help="The same.")],
    no_data: Annotated[bool, typer.Option("--no-data", help="Compare headers only.")] = False,
    **given: Any,
) -> None:
    """Show how two models differ: keys, tensors, and how far their values lie apart; exit code 1 where they do."""
    from ggferry.converters.analysis.differences.diff_by_role import difference_of
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with access_of(first, given) as left, access_of(second, given) as right:
        a, b = open_checkpoint(left), open_checkpoint(right)
        total = sum(ref.nbytes for side in (a, b) for ref in side.tensors.values())
        stage = right.staged(left.staged(_stage(given)))
        with stage(_checking(), total) as progress:
            found, by_roles = difference_of(a, b, data=not no_data, progress=progress)
        names = known_by(a.path), known_by(b.path)
        left.check_unchanged()
        right.check_unchanged()
        a.close()
        b.close()
    if by_roles:
        say("note     compared by roles, through the layouts of both containers: names are GGUF's")
    if given["as_json"]:
        print_json({"first": names[0], "second": names[1], **_finite(found.as_dict())})
    else:
        _tell_difference(found, *names)
    if found.differs:
        raise typer.Exit(1)


def _finite(value: Any) -> Any:
    """Return plain data with infinities as texts, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value


def _tell_difference(found: Any, first: str, second: str) -> None:
    for key in found.keys:
        for line in key.lines:
            tell(line)
    for tensor in found.tensors:
        tell(_tensor_line(tensor))
    if not found.differs:
        data = "every tensor byte for byte" if found.looked and not found.same_values else "every tensor"
        tell(f"equal: {found.same_keys} keys, {data}")
        return
    tell(f"--- {first}")
    tell(f"+++ {second}")
    values = f", {found.same_values} with other bytes and the same values" if found.same_values else ""
    tell(f"{len(found.keys)} keys differ, {found.same_keys} do not; "
         f"{len(found.tensors)} tensors differ, {found.same_tensors} do not{values}")  # fmt: skip


def _tensor_line(tensor: Any) -> str:
    if tensor.first is None or tensor.second is None:
        mark, facts = ("+", tensor.second) if tensor.first is None else ("-", tensor.first)
        return f"{mark} tensor {tensor.name}: {facts[0]} {'×'.join(map(str, facts[1]))}"
    types = tensor.first[0] if tensor.first[0] == tensor.second[0] else f"{tensor.first[0]} → {tensor.second[0]}"
    if tensor.first[1] != tensor.second[1]:
        shapes = " → ".join("×".join(map(str, facts[1])) for facts in (tensor.first, tensor.second))
        return f"~ tensor {tensor.name}: {types}, {shapes}"
    if tensor.not_finite:
        return f"~ tensor {tensor.name}: {types}, not all values are finite"
    if tensor.relative_rms is None:
        return f"~ tensor {tensor.name}: {types}"
    return f"~ tensor {tensor.name}: {types}, relative RMS {tensor.relative_rms:.3g}, largest {tensor.largest:.3g}"


def judge(file: str, given: dict[str, Any]) -> None:
    """Judge one file by itself, for `verify`; exit code 5 where there is a fault."""
    from ggferry.converters.analysis.validate import examine

    for option in options_of("verify"):
        if option.name not in ALONE and given[option.name] not in (option.default, None, (), []):
            raise UsageError(f"{option.flag}: of a file alone nothing is compared", hint="verify SOURCE OUTPUT")
    if given["level"] not in ("full", "fast"):
        raise UsageError("--level", found=given["level"], expected="fast, full")
    with access_of(file, given) as path:
        report = examine(path, data=given["level"] == "full", stage=path.staged(_stage(given)))
        path.check_unchanged()
    if given["as_json"]:
        print_json({**report.as_dict(), "path": known_by(report.path)})
    else:
        tell(f"read     {known_by(report.path)}: {report.what}")
        for finding in report.findings:
            tell(f"{finding.grade:<8} {finding.about}: {finding.text}")
        for runtime in report.runtimes:
            tell(f"{'loads' if runtime.loads else 'refuses':<8} {runtime.name}{': ' if runtime.why_not else ''}"
                 f"{'; '.join(runtime.why_not)}")  # fmt: skip
        looked = f"{report.tensors} tensors looked at" if given["level"] == "full" else "no tensor data looked at"
        tell(f"{'sound' if report.sound else 'faulty':<8} {looked}")
    if not report.sound:
        raise typer.Exit(CORRUPT)


def _stage(given: dict[str, Any]) -> Stage:
    from ggferry.service.cli.progress_bar import progress

    return lambda title, total: progress(title, total, wanted=not given["as_json"])


def _checking() -> Any:
    from ggferry.support.progress import Phase

    return Phase.CHECKING
