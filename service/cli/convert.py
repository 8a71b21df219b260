"""The commands that write GGUF files and prove them: convert, quantize, verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, access_of, offers, print_json, say, tell

if TYPE_CHECKING:
    from ggferry.converters.conversion.request import Request
    from ggferry.converters.conversion.run import Result
    from ggferry.service.destinations.destination import Destination
    from ggferry.service.operations._convert_and_publish import HubDestination
    from ggferry.service.operations._json_forms import ConvertedFile, ConvertedFiles, PublishedConversion
    from ggferry.service.operations.publish import Publication
    from ggferry.service.sources.local_source import LocalSource

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@offers("convert")
def convert(
    source: Annotated[
        str,
        typer.Argument(
            parser=Named, metavar="SOURCE", help="A model file, the first part of one, or a folder; a path or a URL."
        ),
    ],
    **given: Any,
) -> None:
    """Convert a model to GGUF v3 and prove it."""
    from ggferry.converters.conversion.request import request_of

    with access_of(source, given, tensors=_reads_tensors(given)) as path:
        out = given["out"] if given["out"] is not None or not path.url else os.getcwd()
        request = request_of(path, given)
        if given["publish"] is not None:
            _convert_and_publish(replace(request, out=out), path, given)
            return
        if given["create_pr"] or given["private"] or given["remove_published"]:
            raise UsageError("--create-pr, --private and --remove-published go with --publish")
        with _destination(out, request, given) as place:
            _convert(replace(request, out=place.out), path, given, place)


@commands.command(cls=HeadedCommand)
@offers("quantize")
def quantize(
    source: Annotated[
        str, typer.Argument(parser=Named, metavar="SOURCE", help="A GGUF file, or a shard of one; a path or a URL.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write, or a folder.")],
    outtype: Annotated[
        str | None,
        typer.Argument(
            metavar="TYPE",
            help="q4_k_m, q8_0, … or copy (`ggferry types`); --recipe, --like and --target-size stand in its place.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Argument(metavar="[THREADS]", help="Worker threads (default: one a core).")
    ] = None,
    **given: Any,
) -> None:
    """Quantize a GGUF model of any architecture."""
    from ggferry.converters.conversion.request import by_flag
    from ggferry.converters.conversion.run import quantize_request

    if outtype is None and all(given[name] is None for name in ("recipe", "like", "target_size", "target_bpw")):
        raise UsageError("no type", expected="TYPE, --recipe FILE, --like FILE, --target-size SIZE or --target-bpw BPW")
    with access_of(source, given, tensors=_reads_tensors(given)) as path:
        request = replace(quantize_request(path, out, outtype or "keep", given, by_flag), jobs=threads)
        with _destination(out, request, given) as place:
            _convert(replace(request, out=place.out), path, given, place)


@commands.command(cls=HeadedCommand)
@offers("verify")
def verify(
    source: Annotated[str, typer.Argument(parser=Named, metavar="SOURCE", help="What was converted; a path or a URL.")],
    output: Annotated[
        str | None,
        typer.Argument(
            parser=Named,
            metavar="[OUTPUT]",
            help="The GGUF file made of it; a path or a URL. Without one, SOURCE by itself.",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Compare a source with its conversion: accounting, every key, every tensor, the vocabulary, logits.

    The options of the conversion are taken from the receipt beside the output, where there is one. A file alone is
    judged by itself: structure, meaning, NaN and constants, vocabulary, template, and which programs load it.
    """
    blockwise = any(given[name] is not None for name in ("receipt", "sample", "signed"))
    if blockwise and output is None:
        from ggferry.service.cli.files.signing import check_file

        check_file(source, given)
        return
    if blockwise:
        raise UsageError("--receipt, --sample and --signed: of a file alone", hint="verify FILE --sample 1%")
    if output is None:
        from ggferry.service.cli.files.surveying import judge

        judge(source, given)
        return
    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.conversion.verify import reverify
    from ggferry.service.cli.progress_bar import progress
    from ggferry.support.allocator import tune_malloc

    tune_malloc()
    quiet = given["as_json"]
    with access_of(source, given) as left, access_of(output, given) as right:
        stage = right.staged(left.staged(lambda title, total: progress(title, total, enabled=not quiet)))
        report = reverify(request_of(left, given), right, stage, given["allow_keys"] or ())
        left.check_unchanged()
        right.check_unchanged()
    if quiet:
        print_json({"verified": True, **report.as_dict()})
        return
    for note in report.notes:
        say(f"note     {note}")
    tell(report.line)


def _reads_tensors(given: Mapping[str, Any]) -> bool:
    """Return whether more than headers is read: a size is chosen for by measuring, in a dry run too."""
    return not given["dry_run"] or given["target_size"] is not None or given["target_bpw"] is not None


def _destination(out: str | None, request: Request, given: Mapping[str, Any]) -> AbstractContextManager[Destination]:
    """Return where the output goes; a dry run writes nothing, and so needs no place in another program's store."""
    from ggferry.converters.conversion.options import types_of
    from ggferry.service.destinations.destination import PlainPath, destination

    if given["dry_run"]:
        return nullcontext(PlainPath(os.getcwd() if out is not None and "://" in out else out))
    several = len(types_of(request.options.outtype)) > 1
    return destination(out, to=request.to, several=several, force=request.force)


def _convert(request: Request, source: LocalSource, given: Mapping[str, Any], place: Destination) -> None:
    """Carry the request out and report what was done, or print its plan."""
    from ggferry.converters.conversion.run import convert
    from ggferry.service.cli.progress_bar import progress
    from ggferry.support.allocator import tune_malloc

    as_json = given["as_json"]
    if given["dry_run"]:
        _print_plans(request, source, as_json)
        return
    tune_malloc()
    stage = source.staged(lambda title, total: progress(title, total, enabled=not as_json))
    results = convert(request, stage, lambda receipt: source.check_unchanged())
    stored = place.publish(results)
    if as_json:
        outputs = _as_dicts(results)
        print_json(_with_table(outputs, results) if len(outputs) > 1 else outputs[0])
        return
    _report(results)
    for line in stored:
        tell(line)


def _convert_and_publish(request: Request, source: LocalSource, given: Mapping[str, Any]) -> None:
    """Convert, prove and publish; of a dry run, print the plan and the card."""
    from ggferry.service.cli.progress_bar import progress
    from ggferry.service.operations._convert_and_publish import HubDestination, convert_and_publish
    from ggferry.support.allocator import tune_malloc

    as_json = given["as_json"]
    to = HubDestination(given["publish"], given["create_pr"], given["private"], given["remove_published"])
    if request.out is not None and "://" in request.out:
        raise UsageError("--publish: outputs are files here first", found=request.out, expected="a path")
    stage = source.staged(lambda title, total: progress(title, total, enabled=not as_json))
    if given["dry_run"]:
        _print_plans(request, source, as_json, to)
        return
    tune_malloc()
    done = convert_and_publish(request, to, stage, lambda receipt: source.check_unchanged())
    if as_json:
        published: PublishedConversion = {
            **_with_table(_as_dicts(done.results), done.results),
            "published": done.publications,
            "kept": list(done.kept),
            "published_before": list(done.elsewhere),
            "removed": list(done.removed),
        }
        print_json(published)
        return
    for path in done.kept:
        say(f"kept     {path}: made before, of the same source with the same options")
    for path in done.elsewhere:
        say(f"kept     {path}: published before, says {path}.published.json, and the repository has it")
    if done.results:
        _report(done.results)
    for publication in done.publications:
        for note in publication.notes:
            say(f"note     {note}")
        tell(f"published {publication.pull_request or publication.url}")
    for path in done.removed:
        tell(f"removed  {path}")


def _main(results: Sequence[Result]) -> tuple[Sequence[Result], Result | None]:
    """Return the outputs, and the mmproj file beside them."""
    from ggferry.converters.conversion.request import split_mmproj

    return split_mmproj(results, lambda result: result.kind) if results else ((), None)


def _as_dicts(results: Sequence[Result]) -> list[ConvertedFile]:
    """Return what was made for JSON; each file with the mmproj file that was written beside all."""
    main, mmproj = _main(results)
    return [_as_dict(result, mmproj) for result in main]


def _with_table(outputs: list[ConvertedFile], results: Sequence[Result]) -> ConvertedFiles:
    """Return several outputs with their numbers, for JSON."""
    from ggferry.converters.conversion.summary import rating

    return {"outputs": outputs, "table": [rating(result) for result in _main(results)[0]]}


def _report(results: Sequence[Result]) -> None:
    """Print what was read, written and proved, and a table of several outputs."""
    from ggferry.converters.conversion.summary import table

    main, mmproj = _main(results)
    for note in dict.fromkeys(note for result in results for note in result.receipt["notes"]):
        say(f"note     {note}")
    for name, param in (item for result in (main[0], mmproj) if result for item in result.assumed.items()):
        say(f"assumed  {name} = {param.value} ({param.reason})")
    for result in results:
        for line in result.lines[0 if result is not mmproj else 1 :]:
            tell(line)
    for line in table(main) if len(main) > 1 else ():
        tell(line)


def _as_dict(result: Result, mmproj: Result | None = None) -> ConvertedFile:
    """Return a result for JSON, with the file that was written beside it."""
    own: ConvertedFile = {"path": result.path, "receipt": result.receipt}
    if mmproj is not None:
        own["mmproj"] = {"path": mmproj.path, "receipt": mmproj.receipt}
    return own


def _print_plans(request: Request, source: LocalSource, as_json: bool, to: HubDestination | None = None) -> None:
    """Print what would be written, and what of it would be published."""
    from ggferry.converters.conversion.plan import plan_source
    from ggferry.converters.conversion.request import FOLDERS, MMPROJ
    from ggferry.service.cli.progress_bar import progress

    stage = source.staged(lambda title, total: progress(title, total, enabled=not as_json))
    outputs = plan_source(request, stage).outputs
    plans = [output.kind.describe(output) for output in outputs]
    card = None
    if to is not None:
        from ggferry.service.operations._convert_and_publish import planned_card

        card = planned_card(outputs, to, stage)
    if as_json:
        if card is not None:
            print_json({"plans": plans, "published": card})
            return
        print_json({"plans": plans} if len(plans) > 1 else plans[0])
        return
    for output, facts in zip(outputs, plans, strict=True):
        if len(plans) > 1:
            tell(f"{'mmproj, ' if output.kind.name == MMPROJ else ''}{output.request.options.outtype}:")
        (_print_folder if output.kind.name in FOLDERS.values() else _print_plan)(facts)
    if card is not None:
        _print_card(card)


def _print_card(card: Publication) -> None:
    for note in card.notes:
        say(f"note     {note}")
    tell("")
    for line in card.card.rstrip("\n").split("\n"):
        tell(line)
    tell("")
    for file in card.files:
        tell(f"would send  {file.name}  {file.bytes:,} bytes, and its receipt")


def _print_folder(facts: Mapping[str, Any]) -> None:
    for note in facts["notes"]:
        say(f"note     {note}")
    for t in facts["tensors"]:
        shape = "×".join(map(str, t["shape"]))
        made = ", ".join(f"{each['name']} ({', '.join(each['types'])})" for each in t["of"])
        undone = f", without {', '.join(t['undone'])}" if t.get("undone") else ""
        tell(f"{t['name']:<48}  {shape:<14}  {t['type']} of {made}{undone}  {t['bytes']:,}")
    for file in facts["files"]:
        tell(f"{file['name']:<48}  {file['bytes']:,} bytes")
    tell(
        f"{facts['folder']}: {facts['class']}, {len(facts['tensors'])} tensors, {facts['bytes_written']:,} bytes "
        f"written, and the receipt"
    )


def _print_plan(facts: Mapping[str, Any]) -> None:
    for note in facts["notes"]:
        say(f"note     {note}")
    for t in facts["tensors"]:
        shape = "×".join(map(str, t["shape"]))
        what = f"{t['source_type']} → {t['type']}  {t['route']}, {t['grade']}"
        tell(f"{t['name']:<32}  {shape:<14}  {what}  {t['bytes']:,}")
    for drop in facts["dropped"]:
        tell(f"{drop['name']:<32}  not copied: {drop['reason']}")
    tell(
        f"{len(facts['tensors'])} tensors, {facts['bytes_read']:,} bytes read, {facts['bytes_written']:,} bytes written"
    )
