"""Write down what llama.cpp's loader reads: `converters/proof/llama_cpp_keys.txt`.

    pip download --no-deps --no-binary xllamacpp xllamacpp==2026.10.11549
    python tools/llama_cpp_keys.py xllamacpp-2026.10.11549.tar.gz > converters/proof/llama_cpp_keys.txt

The archive holds llama.cpp's sources (thirdparty/llama.cpp), its version ends in llama.cpp's build number, and the
wheel of that version is what the tests run. Nothing of ggferry is imported: the list must be able to disagree with our
tables.

Per architecture the two functions of its class are followed (`load_arch_hparams`, `load_arch_tensors`): which key is
asked for into a variable of which type, whether its absence ends the load, what the variable holds else; which tensors
are made. A request under a condition that only a file decides is 'sometimes', with the condition's text. What the
reader does not understand ends the script. The loader's own templates were read by a person; a digest of each stands
below, and a version in which one differs ends the script until somebody has read it again.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cpp_statements import ParseError, bodies, clean
from loader_source import Source
from loader_walk import Read, Tensor, Walker, shown

HEAD = """\
# What llama.cpp's loader reads: keys and tensors, for each architecture it can load.
# Made by tools/llama_cpp_keys.py from llama.cpp's sources in {archive}; not edited by hand.
#
#   KEY TYPES STATE [= DEFAULT] [when CONDITION]      a key; one that begins with a dot follows the architecture's name
#   tensor NAME STATE                                 a tensor; {{n}} is a block, {{e}} an expert
#
# TYPES: those the loader takes, [x] is an array of x, [] any array. STATE: required (the load ends without it),
# sometimes (required under a condition), optional. CONDITION: in llama.cpp's words, under which it asks at all; they
# suppose a file without NextN blocks. DEFAULT: what the loader assumes where the key is absent, if its source says that
# in one place. [*] holds for every architecture, unless its own section says otherwise; [tokenizer NAME] for files with
# that tokenizer.ggml.model; [pre] lists the values of tokenizer.ggml.pre.
version {version}
sha256 {digest}
"""

# Functions whose meaning is written into loader_walk.py or below, by a person who read them.
READ_BY_HAND = {
    "llama-model-loader.cpp llama_model_loader::get_key": "c7bb9e2a9d794ede",
    "llama-model-loader.cpp llama_model_loader::get_arr": "c8f48a00f5901082",
    "llama-model-loader.cpp llama_model_loader::get_arr_n": "62a5da4fb15c2487",
    "llama-model-loader.cpp llama_model_loader::get_key_or_arr": "636f288d481e2cd0",
    "llama-model-loader.cpp llama_model_loader::create_tensor": "9c32b0fac03fca79",
    "llama-model-loader.cpp llama_model_loader::done_getting_tensors": "f04bfd33d9f722db",
    "llama-model-loader.cpp llama_model_loader::llama_model_loader": "db68e96cda5f0d0a",
    "llama-model.cpp llama_model_base::nextn_flags": "c83c4113e8b85649",
    "llama-model.cpp llama_prec_policy::load": "b7434d1e8f5fe195",
    "llama-vocab.cpp llama_vocab::impl::load": "6ea07ec5c4bad3e8",
}
# Functions from which a person read a rule of converters/proof/runtime_rules, which names them.
READ_FOR_RULES = {
    "llama-model.cpp llama_model_base::load_hparams": "7a8680af4ab248ef",
    "models/mamba-base.cpp llm_build_mamba_base::build_mamba2_layer": "9ea5d5f38a12533e",
    "models/falcon-h1.cpp llama_model_falcon_h1::load_arch_tensors": "a9e09b4210729b5c",
    "models/granite-hybrid.cpp llama_model_granite_hybrid::load_arch_tensors": "d427bb015f3d32e1",
    "models/nemotron-h.cpp llama_model_nemotron_h::load_arch_tensors": "e466c4ada6749eed",
    "llama-model.cpp llama_model::create_memory": "48f40b9a871a059a",
    "models/gemma3n.cpp llama_model_gemma3n::load_arch_hparams": "9c930af7bc3f872a",
    "models/gemma4.cpp llama_model_gemma4::load_arch_hparams": "26001871e33d551a",
    "llama-context.cpp llama_context::llama_context": "422edffc1f4ec0df",
    "models/deepseek2.cpp llama_model_deepseek2::load_arch_hparams": "f1800d407e8ddab5",
    "models/deepseek2.cpp llama_model_deepseek2::graph::graph": "009559be5937a2f6",
    "models/deepseek32.cpp llama_model_deepseek32::load_arch_hparams": "a80f4a234e5d5186",
    "models/deepseek32.cpp llama_model_deepseek32::graph::graph": "ab662b44f83b4f07",
    "models/glm-dsa.cpp llama_model_glm_dsa::load_arch_hparams": "a1b39526821c28bb",
    "models/glm-dsa.cpp llama_model_glm_dsa::graph::graph": "3603cb5306cf033e",
    "models/mistral3.cpp llama_model_mistral3::load_arch_hparams": "f4c9de55007154e9",
    "llama-context.cpp llama_init_from_model": "726c5d0b3184293f",
    "../ggml/src/ggml-cpu/ops.cpp ggml_mrope_cache_init": "7b8fba303a54f1da",
    "../ggml/src/ggml-cpu/ops.cpp ggml_compute_forward_rms_norm_f32": "087dee077a987bce",
    "../ggml/src/ggml-cpu/ops.cpp ggml_compute_forward_rope_flt": "b59a2737f63afc10",
}
BESIDE = "../ggml/src/ggml-cpu/ops.cpp"
GENERAL = """\
general.architecture str required
general.file_type u32 optional
general.alignment u32 optional = 32
general.tensor_extra.name [str] optional
general.tensor_extra.prec_a4 [bool] sometimes when general.tensor_extra.name
split.no u16 sometimes when split.count > 1
split.count u16 optional = 0
split.tensors.count i32 sometimes when split.count > 1
tokenizer.chat_template str optional
"""
# llama_vocab::impl::load asks for these by gguf_find_key.
VOCABULARY = """\
tokenizer.ggml.tokens [str] required
tokenizer.ggml.scores [f32]|[i32] optional
tokenizer.ggml.token_type [i32] optional
tokenizer.ggml.suppress_tokens [i32] optional
"""
MERGES = {"gpt2", "hybriddna", "whitespace", "gemma4"}
NO_TOKENS = {"none", "no_vocab"}


def main() -> None:
    archive = sys.argv[1]
    version = re.search(r"xllamacpp-[\d.]*\.(\d+)\.tar\.gz$", archive)
    if version is None:
        raise SystemExit("the source distribution of xllamacpp, please")
    files = dict(sources(archive))
    _check_digests({**files, **dict(sources(archive, beside=True))})
    source = Source.of(files)
    digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    print(HEAD.format(archive=Path(archive).name, version=f"b{version[1]}", digest=digest), end="")
    for line in _all(files, source):
        print(line)


def sources(archive: str, beside: bool = False) -> Iterator[tuple[str, str]]:
    """(path below llama.cpp/src, text) of every source file there, or of the one `BESIDE` them."""
    with tarfile.open(archive) as bundle:
        for member in bundle:
            _, found, path = member.name.partition("/thirdparty/llama.cpp/src/")
            if beside:
                found = member.name.endswith("/thirdparty/llama.cpp/" + BESIDE.removeprefix("../"))
                path = BESIDE
            if found and path.endswith((".cpp", ".h")):
                content = bundle.extractfile(member)
                assert content is not None
                yield path, content.read().decode()


def _check_digests(files: Mapping[str, str]) -> None:
    changed = []
    for place, digest in (READ_BY_HAND | READ_FOR_RULES).items():
        path, name = place.split()
        found = bodies(files[path], name)
        if not found:
            raise SystemExit(f"{path}: no function {name}")
        now = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
        if now != digest:
            changed.append(f'    "{place}": "{now}",')
    if changed:
        raise SystemExit("read these functions again, then change their digests:\n" + "\n".join(changed))


def _all(files: Mapping[str, str], source: Source) -> Iterator[str]:
    common = _base(source, "")
    yield from ("", "[*]", *GENERAL.splitlines(), *_sampling(files))
    shared = _keys(common.reads) | _tensors(_everywhere(source))
    yield from shared.values()
    for name, symbol in source.architectures.items():
        made = source.classes.get(symbol)
        if made is None or symbol == "LLM_ARCH_CLIP":  # a stub whose functions throw
            continue
        walker = _base(source, symbol)
        walker.follow(source.method(made, "load_arch_hparams"))
        walker.follow(source.method(made, "load_arch_tensors"))
        own = _keys(read for read in walker.reads if not read.key.startswith("tokenizer."))
        own |= _tensors(walker.tensors)
        yield from ("", f"[{name}]", *(line for key, line in own.items() if shared.get(key) != line))
    yield from _tokenizers(files, source)


def _base(source: Source, symbol: str) -> Walker:
    walker = Walker(source, symbol)
    walker.follow(source.function("llama_model_base::load_hparams"))
    return walker


def _everywhere(source: Source) -> list[Tensor]:
    """What `load_tensors` makes for every architecture: scales of quantized weights, none of them required."""
    tokens = source.raw("llama_model_base::load_tensors")
    walker = Walker(source, "")
    for index, token in enumerate(tokens):
        if token == "create_tensor":
            walker.call(token, tokens, index, ())
    if any(tensor.state != "optional" for tensor in walker.tensors):
        raise ParseError("load_tensors requires a tensor")
    return walker.tensors


def _keys(reads: Iterable[Read]) -> dict[str, str]:
    """The line of each key, from all requests for it."""
    grouped: dict[str, list[Read]] = {}
    for read in reads:
        grouped.setdefault(read.key, []).append(read)
    return {key: _key_line(key, found) for key, found in grouped.items()}


def _key_line(key: str, reads: list[Read]) -> str:
    refused = frozenset().union(*(read.refuses for read in reads if not read.when))
    takes = [kind for read in reads for kind in read.takes if kind not in refused] or list(reads[0].takes)
    if any(kind.startswith("[") and kind != "[]" for kind in takes):
        takes = [kind for kind in takes if kind != "[]"]  # whose length was asked for only
    line = f"{key} {'|'.join(dict.fromkeys(takes))}"
    required = [read for read in reads if read.required]
    if any(not read.when for read in required):
        return f"{line} required"
    if required:
        return f"{line} sometimes when {shown(required[0].when)}"
    defaults = {read.default for read in reads}
    known = f" = {defaults.pop()}" if len(defaults) == 1 and "" not in defaults else ""
    rarely = f" when {shown(reads[0].when)}" if all(read.when for read in reads) else ""
    return f"{line} optional{known}{rarely}"


def _tensors(tensors: list[Tensor]) -> dict[str, str]:
    grouped: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        grouped.setdefault(tensor.name, []).append(tensor)
    return {f"tensor {name}": _tensor_line(name, found) for name, found in grouped.items()}


def _tensor_line(name: str, tensors: list[Tensor]) -> str:
    if any(tensor.state == "required" and not tensor.when for tensor in tensors):
        return f"tensor {name} required"
    sometimes = any(tensor.state != "optional" for tensor in tensors)
    return f"tensor {name} {'sometimes' if sometimes else 'optional'}"


def _sampling(files: Mapping[str, str]) -> Iterator[str]:
    """Keys that programs ask the library for as text, whatever their type."""
    text = clean(files["llama-model.cpp"])
    for key in dict.fromkeys(re.findall(r'LLAMA_MODEL_META_KEY_\w+:\s*return "([^"]+)"', text)):
        yield f"{key} any optional"


def _tokenizers(files: Mapping[str, str], source: Source) -> Iterator[str]:
    """What `llama_vocab::impl::load` asks for, for each tokenizer.ggml.model, and the pre-tokenizers it knows."""
    text = " ".join(source.raw("llama_vocab::impl::load"))
    models = dict.fromkeys(re.findall(r'tokenizer_model == "([^"]*)"', text))
    found = set(re.findall(r"gguf_find_key \( ctx , kv \( (\w+) \)", text))
    lines = (*VOCABULARY.splitlines(), "tokenizer.ggml.merges", "tokenizer.ggml.precompiled_charsmap")
    if {source.keys[symbol] for symbol in found} != {line.split()[0] for line in lines}:
        raise ParseError(f"llama_vocab::impl::load looks for {sorted(found)}")
    for model in models:
        walker = Walker(source, "", {"tokenizer_model": f'"{model}"'})
        walker.follow(source.function("llama_vocab::impl::load"))
        own = _keys(read for read in walker.reads if not read.key.startswith("general."))
        yield from ("", f"[tokenizer {model}]", *own.values())
        if model in NO_TOKENS:
            continue
        yield from VOCABULARY.splitlines()
        if model in MERGES:
            kimi = 'sometimes when not(tokenizer_pre == "kimi-k2")'
            yield f"tokenizer.ggml.merges [str] {'required' if model == 'gemma4' else kimi}"
        if model == "t5":
            yield "tokenizer.ggml.precompiled_charsmap [u8]|[i8] optional"
    yield from ("", "[pre]", *sorted(set(re.findall(r'tokenizer_pre == "([^"]*)"', text))))


if __name__ == "__main__":
    main()
