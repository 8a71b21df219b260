"""Fuzz targets, each in a fork of this process, guided by coverage (atheris); started by `fuzz.run`.

Every line of the standard input is a list in JSON: the file to which stdout and stderr go, target, corpus folder, finds
folder, then what libFuzzer is given. A line of the standard output answers, when that has ended. A module gets its
counters once, when it is imported here: for each target anew that took twelve seconds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import atheris

_KERNELS = "ggferry.quant.kernels"
KERNELS = [_KERNELS, *(f"{_KERNELS}.{path.stem}" for path in Path(__file__).parents[2].glob("quant/kernels/*.py"))]
"""Modules whose byte code must be as it is: numba compiles it."""
FAST = "/dev/shm"
MORE = 1024  # MiB that the cases may take


def main() -> None:
    """Serve until the standard input ends."""
    with atheris.instrument_imports(include=["ggferry"], exclude=KERNELS):
        import fuzz.targets  # noqa: F401 — before the first fork

        for line in sys.stdin:
            said, *arguments = json.loads(line)
            modules = Path(f"{said}.modules")
            child = os.fork()
            if child == 0:
                _output_to(said)
                try:
                    _fuzz(modules, *arguments)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            os.waitpid(child, 0)
            for name in modules.read_text().split() if modules.exists() else ():  # none where it did not begin
                importlib.import_module(name)
            print(flush=True)


def _output_to(path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, each in enumerate((nothing, file, file)):
        os.dup2(each, number)


def _fuzz(modules: Path, name: str, corpus: str, finds: str, *options: str) -> None:
    """Fuzz until libFuzzer ends the process; write down which modules of ours the seeds import."""
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    seeds = Path(corpus)
    for seed in target.seeds():
        if len(seed) <= target.most:
            (seeds / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    words, given = seeds.parent / f"{name}.dict", [*options]
    words.write_text("".join(f'"{word.replace(chr(34), chr(92) + chr(34))}"\n' for word in target.words))
    if target.words:
        given.append(f"-dict={words}")
    case = _case(target.run, Path(finds))
    for seed in sorted(seeds.iterdir())[:50]:  # what is imported at first use is instrumented, too
        case(seed.read_bytes())
    modules.write_text("\n".join(each for each in sys.modules if each.startswith("ggferry.")))
    given.append(f"-rss_limit_mb={_resident() + MORE}")
    atheris.Setup([name, corpus, f"-artifact_prefix={finds}/", f"-max_len={target.most}", *given], case)
    atheris.Fuzz()


def _case(run, finds: Path):  # type: ignore[no-untyped-def]
    from ggferry.formats.errors import GgferryError

    folder = Path(tempfile.mkdtemp(prefix="ggferry-fuzz-", dir=FAST if os.access(FAST, os.W_OK) else None))

    def case(data: bytes) -> None:
        try:
            run(data, folder)
        except GgferryError:
            pass
        except BaseException as error:
            _keep(data, error, finds)
        finally:
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return case


def _resident() -> int:
    """Return the MiB that this process takes with its libraries: just installed ones are mapped in large pages."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _keep(data: bytes, error: BaseException, finds: Path) -> None:
    """Keep a find, the shortest of those that end at one line of the code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    words = str(error)[:60] if type(error).__name__ == "FindError" else ""
    mark = hashlib.sha256(f"{type(error).__name__}{last.filename}{last.lineno}{words}".encode()).hexdigest()[:12]
    path = finds / f"find-{mark}"
    if path.exists() and path.stat().st_size <= len(data):
        return
    path.write_bytes(data)
    path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    main()
