"""`ggferry serve`: the HTTP API and the page, and the tokens that let callers in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import print_json, say, size_of, tell

if TYPE_CHECKING:
    from ggferry.service.server.settings import Settings
    from ggferry.service.server.store.database import Store

commands = typer.Typer(rich_markup_mode=None)
serve = typer.Typer(
    help="Serve the HTTP API and the page.", rich_markup_mode=None, invoke_without_command=True, no_args_is_help=False
)
token = typer.Typer(help="Tokens that let callers in.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(serve, name="serve")
serve.add_typer(token, name="token")
webhook = typer.Typer(help="Receivers of notices when jobs end.", no_args_is_help=True, rich_markup_mode=None)
serve.add_typer(webhook, name="webhook")

SIZES = "4G is 4·10⁹ bytes, 4GiB is 4·2³⁰."
Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="Folder of uploads, outputs and the default ledger.")
]
Ledger = Annotated[str | None, typer.Option("--ledger", help="Path, URL, or env:NAME (default: DATA/ledger).")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@serve.callback()
def run(
    context: typer.Context,
    root: Annotated[
        list[str] | None, typer.Option("--root", metavar="DIR", help="A folder or URL that may be read; repeatable.")
    ] = None,
    ledger: Ledger = None,
    data: Data = None,
    dest: Annotated[
        str | None, typer.Option("--dest", metavar="DIR", help="Folder of outputs (default: in DATA).")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any that is free.")] = 8765,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name this server goes by; repeatable.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="Address or network of a proxy whose X-Forwarded-For and -Proto are believed; repeatable.",
        ),
    ] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private-addresses", help="Fetch URLs of private and local addresses, too.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, max=256, help="Workers that convert; 0: none here.")] = 1,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads a worker.")] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help=f"Memory cap of a worker. {SIZES}")] = "4GiB",
    timeout: Annotated[float | None, typer.Option("--timeout", min=1, help="Seconds a job (default: by size).")] = None,
    max_file: Annotated[
        str, typer.Option("--max-file", metavar="SIZE", help="Largest file a worker may write.")
    ] = "1TiB",
    max_upload: Annotated[str, typer.Option("--max-upload", metavar="SIZE", help="Largest upload.")] = "1TiB",
    silence: Annotated[
        float,
        typer.Option("--silence", min=0.1, help="Seconds without a byte after which an upload or a download is ended."),
    ] = 30.0,
    quota: Annotated[
        str, typer.Option("--quota", metavar="SIZE", help="Uploads and outputs of a token together.")
    ] = "4TiB",
    rate: Annotated[float, typer.Option("--rate", min=0, help="Requests a second of a token; 0: no limit.")] = 100.0,
    drain: Annotated[float, typer.Option("--drain", min=0, help="Seconds for running jobs after SIGTERM.")] = 30.0,
    keep: Annotated[
        float | None,
        typer.Option("--keep-outputs", min=0, metavar="DAYS", help="Then outputs and uploads are removed."),
    ] = None,
    keep_records: Annotated[
        float | None, typer.Option("--keep-records", min=0, metavar="DAYS", help="Then ended jobs leave the ledger.")
    ] = None,
) -> None:
    """Serve the HTTP API and the page until SIGTERM; the link that is printed signs a browser in."""
    from ggferry.service.server.settings import DAY, Settings
    from ggferry.service.workers.supervisor import Limits

    cores = len(os.sched_getaffinity(0))
    limits = Limits(
        size_of(memory, "--memory"), threads or max(1, cores // max(1, jobs)), size_of(max_file, "--max-file")
    )
    settings = Settings(
        data=_data(data),
        roots=tuple(root or ()),
        ledger=ledger,
        dest=dest,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        proxies=tuple(map(_network, trusted_proxy or ())),
        private=allow_private,
        jobs=jobs,
        limits=limits,
        timeout=timeout,
        upload_bytes=size_of(max_upload, "--max-upload"),
        upload_silence=silence,
        quota=size_of(quota, "--quota"),
        rate=rate,
        drain=drain,
        keep_outputs=None if keep is None else keep * DAY,
        keep_records=None if keep_records is None else keep_records * DAY,
    )
    context.obj = settings
    if context.invoked_subcommand is not None:
        return
    _check_roots(settings)
    try:
        from ggferry.service.server.run_server import serve as start
    except ModuleNotFoundError as error:
        words = f"the service needs a package that is not here: {error.name}"
        raise UsageError(words, hint="pip install 'ggferry[service]'") from None
    start(settings, say)


def _data(given: str | None) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(given or os.path.join(state, "ggferry"))


def _network(text: str) -> str:
    """Return an address or network as it was given. Raises UsageError for what is none."""
    import ipaddress

    try:
        ipaddress.ip_network(text)
    except ValueError:
        words = "an address or a network, as 127.0.0.1 or 10.0.0.0/8"
        raise UsageError("--trusted-proxy", found=text, expected=words) from None
    return text


def _check_roots(settings: Settings) -> None:
    from ggferry.service.server.work.sources import is_within
    from ggferry.service.storage.stores import is_remote

    for each in settings.places:
        if not is_remote(each) and not os.path.isdir(each):
            raise UsageError("--root", found=each, expected="a folder, or the URL of a store")
        own = (os.path.realpath(settings.data), settings.uploads, settings.quarantine)
        if not is_remote(each) and (
            any(is_within(place, each) for place in own) or any(is_within(each, place) for place in own[1:])
        ):
            raise UsageError(
                "--root: one user's uploads would be another's source",
                found=each,
                expected=f"a folder apart from the server's own, {settings.data}",
            )


# --- tokens --------------------------------------------------------------------------------------------------------


def _store(context: typer.Context) -> Store:
    from ggferry.service.server.store.database import Store

    settings: Settings = context.obj
    os.makedirs(settings.data, 0o700, exist_ok=True)
    return Store(settings.ledger_place)


@token.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[str, typer.Option("--scope", help="read, submit or admin.")] = "read",
    days: Annotated[float | None, typer.Option("--days", min=0, help="Then it expires.")] = None,
    quota: Annotated[str | None, typer.Option("--quota", metavar="SIZE", help="Bytes it may store.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Requests a second.")] = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it; it is not shown again."""
    from ggferry.service.server.settings import DAY
    from ggferry.service.server.store import tokens

    seconds = None if days is None else days * DAY
    room = None if quota is None else size_of(quota, "--quota")
    made = tokens.add(_store(context), name, scope, seconds=seconds, quota=room, rate=rate)
    if as_json:
        print_json({"token": made, "id": made.split("_")[1], "name": name, "scope": scope})
    else:
        tell(made)


@token.command(name="list")
def list_tokens(context: typer.Context, as_json: Json = False) -> None:
    """List tokens: id, scope, name; never the token itself."""
    from ggferry.service.server.store import tokens

    for each in tokens.every(_store(context)):
        if as_json:
            print_json(each)
        else:
            tell(f"{each['id']}  {each['scope']:<7} {each['name']}")


@token.command()
def revoke(context: typer.Context, wanted: Annotated[str, typer.Argument(metavar="TOKEN", help="Id or name.")]) -> None:
    """End a token, and the browser sessions that were begun with it."""
    from ggferry.service.server.store import tokens

    tokens.revoke(_store(context), wanted)
    say("revoked")


# --- webhooks ------------------------------------------------------------------------------------------------------

Hook = Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]


@webhook.command(name="add")
def add_webhook(
    context: typer.Context, url: Annotated[str, typer.Argument(help="Where notices are sent.")], as_json: Json = False
) -> None:
    """Enter a receiver and print its id and the secret that signs its notices; it is not shown again."""
    from ggferry.service.server.work import notices

    made = notices.add(_store(context), url)
    if as_json:
        print_json(made)
    else:
        tell(f"{made['id']}  {made['secret']}")


@webhook.command(name="list")
def list_webhooks(context: typer.Context, as_json: Json = False) -> None:
    """List receivers: id, notices that wait, URL, and the last error."""
    from ggferry.service.server.work import notices

    for each in notices.every(_store(context)):
        if as_json:
            print_json(each)
        else:
            tell(f"{each['id']}  {each['waiting']:>6} {each['url']}" + (f": {each['error']}" if each["error"] else ""))


@webhook.command(name="test")
def test_webhook(context: typer.Context, wanted: Hook) -> None:
    """Send a notice of no job to a receiver, once."""
    from ggferry.service.server.work import notices
    from ggferry.service.storage.urls import Access, configure_access

    settings: Settings = context.obj
    configure_access(Access(private=settings.private, retry_timeout=0))
    notices.test(_store(context), wanted)
    say("taken")


@webhook.command(name="remove")
def remove_webhook(context: typer.Context, wanted: Hook) -> None:
    """Remove a receiver, and what waits for it."""
    from ggferry.service.server.work import notices

    notices.remove(_store(context), wanted)
    say("removed")
