"""What an importance matrix is written as, and of: `.dat`, sums of inputs, weighted texts, conversations, experts."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from ggferry.converters.forward.imatrix_files import ExpertTokens, expert_tokens, write_imatrix
from ggferry.converters.forward.importance_matrix import Recorder, measure
from ggferry.converters.proof.references.render_conversations import rendered_texts
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import CorruptError, MissingError, UnsupportedError
from ggferry.formats.files.named_texts import path_and_number
from ggferry.formats.imatrix.matrix import LITTLE
from ggferry.formats.imatrix.read import read_imatrix
from ggferry.quant.rounding.directions import signs
from ggferry.service.cli.app import _run
from ggferry.service.operations.imatrix import ImatrixRequest, run

TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
CHAT = [
    {"messages": [{"role": "user", "content": "Which animals are there?"}, {"role": "assistant", "content": "Two."}]},
    {"messages": [{"role": "user", "content": "And now, of which kind are the animals that you have seen there?"}]},
]


@pytest.fixture(scope="module")
def model(fixtures: Path) -> Path:
    return fixtures / "hf/ckpt/llama_k256"


def text(path: Path, fixtures: Path, start: int, end: int) -> Path:
    path.write_text((fixtures / "tokenizers/corpus.txt").read_text()[start:end])
    return path


def measured(model: Path, out: Path, **how: Any) -> Path:
    run(ImatrixRequest(model, out=out, chunk_size=32, force=True, **how))
    return out


def words_of_dat(path: Path) -> tuple[dict[str, tuple[int, np.ndarray]], int, str]:
    """Read a `.dat` as common_imatrix_load_legacy (llama.cpp b11549, common/imatrix-loader.cpp) reads it."""
    data, at = path.read_bytes(), 0

    def number() -> int:
        nonlocal at
        at += 4
        return int(struct.unpack_from("<i", data, at - 4)[0])

    def raw(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    entries = {}
    for _ in range(number()):
        name = raw(number()).decode()
        calls = number()
        entries[name] = calls, np.frombuffer(raw(4 * number()), "<f4")
    chunks = number()
    dataset = raw(number()).decode()
    assert at == len(data)
    return entries, chunks, dataset


def test_a_dat_file_says_what_the_gguf_does(fixtures: Path, tmp_path: Path) -> None:
    model = fixtures / "hf/ckpt/mixtral"
    words = text(tmp_path / "t.txt", fixtures, 0, 900)
    old, new = (measured(model, tmp_path / name, texts=[words]) for name in ("i.dat", "i.gguf"))
    entries, chunks, dataset = words_of_dat(old)
    assert dataset == "t.txt"
    with read_imatrix(str(old)) as legacy, read_imatrix(str(new)) as matrix:
        assert legacy.legacy and legacy.chunks == matrix.chunks == chunks
        assert list(entries) == sorted(matrix.entries) == sorted(legacy.entries)
        for name, entry in matrix.entries.items():
            calls, sums = entries[name]
            assert calls == -(-max(entry.counts) // 32)
            shape = (len(entry.counts), 1, entry.values // len(entry.counts))
            assert np.array_equal(legacy.weights(name, shape), (sums / np.float32(calls)).reshape(shape[0], -1))
            assert np.allclose(legacy.weights(name, shape), matrix.weights(name, shape), rtol=1e-6), name


def test_both_forms_are_those_of_llama_imatrix(fixtures: Path, model: Path, tmp_path: Path) -> None:
    """Same model (F32), text and chunks: `in_sum` as well."""
    words = tmp_path / "text.txt"
    words.write_bytes((fixtures / "tokenizers/corpus.txt").read_bytes()[:6000])
    for name in ("k256.imatrix.gguf", "k256.imatrix.dat"):
        out, theirs = tmp_path / name, fixtures / "quality" / name
        run(ImatrixRequest(model, texts=[words], out=out, chunk_size=64, chunks=8))
        with read_imatrix(str(out)) as one, read_imatrix(str(theirs)) as other:
            assert (one.chunks, one.chunk_size, one.datasets) == (other.chunks, other.chunk_size, other.datasets)
            assert [*one.entries] == [*other.entries] and len(one.entries) == 14
            for weight, entry in one.entries.items():
                assert entry.counts == other.entries[weight].counts
                assert np.allclose(one.sums(weight), other.sums(weight), rtol=1e-5), weight
                ours, expected = one.activations(weight), other.activations(weight)
                if expected is None or ours is None:
                    assert ours is expected is None and one.legacy
                else:
                    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max(), weight
        if name.endswith(".dat"):
            assert out.stat().st_size == theirs.stat().st_size


def test_sketches_are_those_of_the_inputs(fixtures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Held against numpy's products of what the recorder was given; of every expert, none with --sketch 0."""
    seen: dict[tuple[str, int], list[np.ndarray]] = {}
    add = Recorder._add

    def noting(self: Recorder, name: str, item: int, x: Any) -> None:
        seen.setdefault((name, item), []).append(x.double().numpy().copy())
        add(self, name, item, x)

    monkeypatch.setattr(Recorder, "_add", noting)
    words, out = tmp_path / "text.txt", tmp_path / "i.gguf"
    words.write_bytes((fixtures / "tokenizers/corpus.txt").read_bytes()[:3000])
    model = fixtures / "hf/ckpt/mixtral"
    run(ImatrixRequest(model, texts=[words], out=out, chunk_size=64, chunks=3, sketch=5))
    kinds = set()
    with read_imatrix(str(out)) as matrix:
        for name, entry in matrix.entries.items():
            many = len(entry.counts)
            kinds.add((many > 1, entry.shared))
            shape = (many, 8, entry.values // many) if many > 1 else (8, entry.values)
            means, of_all = (
                matrix.means(name, shape),
                [rows for (of, _), each in seen.items() if of == name for rows in each],
            )
            for item in range(many):
                inputs = np.concatenate(of_all if entry.shared else seen[name, item])
                sketch, expected = matrix.sketch(name, item), (inputs @ signs(shape[-1], 5)).T @ inputs
                assert np.abs(sketch - expected).max() < 1e-5 * np.abs(expected).max()
                found = matrix.directions(name, shape, item)
                assert matrix.directions(name, shape, item) is found
                if entry.counts[item] >= LITTLE:
                    assert found.values.shape == (shape[-1], 6)
                    assert np.array_equal(found.values[:, 0], means[item])
    assert kinds == {(False, False), (True, False), (True, True)}
    run(ImatrixRequest(model, in_files=[out], out=tmp_path / "less.gguf", chunk_size=64, sketch=3))
    run(ImatrixRequest(model, in_files=[out], out=tmp_path / "none.gguf", chunk_size=64, sketch=0))
    with read_imatrix(str(tmp_path / "less.gguf")) as less, read_imatrix(str(tmp_path / "none.gguf")) as none:
        for name, entry in less.entries.items():
            assert entry.sketched == 3 and none.sketch(name) is None
            with read_imatrix(str(out)) as matrix:
                for item in range(len(entry.counts)):
                    assert np.allclose(less.sketch(name, item), matrix.sketch(name, item)[:3])


def test_experts_that_are_left_keep_their_directions(fixtures: Path, tmp_path: Path) -> None:
    graph = graph_of(str(fixtures / "hf/ckpt/mixtral"))
    recorder = measure(
        graph, [[(7 * n + 31 * at) % 200 for at in range(99)] for n in range(3)], recorder=Recorder(graph, "f32", 4)
    )
    out, kept = tmp_path / "i.gguf", (3, 1)
    write_imatrix(str(out), recorder, 3, 99, [], output=False, force=False)
    with read_imatrix(str(out)) as matrix:
        stacks = {name: entry for name, entry in matrix.entries.items() if "_exps" in name}
        some = matrix.of_experts(dict.fromkeys(stacks, kept))
        for name, entry in stacks.items():
            columns = entry.values // len(entry.counts)
            for place, expert in enumerate(kept):
                found = some.directions(name, (len(kept), 8, columns), place)
                expected = matrix.directions(name, (len(entry.counts), 8, columns), expert)
                assert found.values.shape[1] == 5 and np.array_equal(found.values, expected.values)
                assert np.array_equal(found.variances, expected.variances)


def test_experts_have_fewer_directions_of_their_own(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one router shares out has one sketch, of as many directions as a matrix in no stack."""
    graph = graph_of(str(fixtures / "hf/ckpt/mixtral"))
    monkeypatch.setattr("ggferry.converters.forward.importance_matrix.STACKED", 2)
    recorder = measure(graph, [[5, 9, 7] * 40], recorder=Recorder(graph, "f32", 6))
    found = {name: [len(each) for each in sketches.values()] for name, sketches in recorder.sketches.items()}
    assert found
    for name, counts in found.items():
        assert counts == ([2] * len(recorder.sums[name]) if "_down_exps" in name else [6]), name


def test_experts_that_saw_few_tokens_are_not_corrected_by_these(fixtures: Path, tmp_path: Path) -> None:
    """But by what all experts read together, where that is known: as one that read all of it."""
    graph = graph_of(str(fixtures / "hf/ckpt/mixtral"))
    recorder = measure(graph, [[5] * LITTLE, [9, 7] * 4], recorder=Recorder(graph, "f32", 4))
    out = tmp_path / "i.gguf"
    write_imatrix(str(out), recorder, 1, 4, [], output=False, force=False)
    seen = set()
    with read_imatrix(str(out)) as matrix:
        for name, entry in matrix.entries.items():
            many = len(entry.counts)
            for item, count in enumerate(entry.counts if many > 1 else ()):
                seen.add((entry.shared, count > 0, count >= LITTLE))
                found = matrix.directions(name, (many, 8, entry.values // many), item)
                assert (matrix.sketch(name, item) is None) == (count == 0 and not entry.shared)
                if not entry.shared:
                    assert found.values.any() == (count >= LITTLE)
                elif count < LITTLE:
                    mean = matrix.activations(name).sum(0, dtype=float) / sum(entry.counts)
                    assert np.allclose(found.values[:, 0], mean, rtol=1e-5, atol=1e-7)
    assert seen == {
        (shared, *kind) for shared in (False, True) for kind in ((False, False), (True, False), (True, True))
    }


def test_weights_that_read_the_same_rows_share_a_sketch(fixtures: Path) -> None:
    """Until an earlier matrix gives one of them fewer directions."""
    graph = graph_of(str(fixtures / "hf/ckpt/llama_k256"))
    chunks = [[(7 * n + 31 * at) % graph.sizes["n_vocab"] for at in range(33)] for n in range(3)]
    once, thrice = Recorder(graph, "f32", 4), Recorder(graph, "f32", 4)
    measure(graph, chunks, recorder=once)
    thrice.sketches["blk.1.attn_k.weight"] = {0: np.zeros((3, 256))}
    for chunk in chunks:
        measure(graph, [chunk], recorder=thrice)
    queries, keys, values = (f"blk.1.attn_{each}.weight" for each in "qkv")
    for recorder in (once, thrice):
        assert recorder.sketches[queries][0] is recorder.sketches[values][0]
    assert once.sketches[keys][0] is once.sketches[queries][0] and len(thrice.sketches[keys][0]) == 3
    for name, sketches in thrice.sketches.items():
        sketch, expected = sketches[0], once.sketches[name][0]
        assert np.allclose(sketch, expected[: len(sketch)], rtol=1e-4, atol=1e-3 * np.abs(sketch).max())


@pytest.mark.parametrize("name", ["llama_k256", "mixtral"])
def test_bfloat16_moves_sums_little_and_threads_do_not(fixtures: Path, name: str) -> None:
    """Products rounded to bfloat16 give sums within 2 % of those of float32; other bytes than these, and always the
    same. What the first block reads first was not multiplied yet.
    """
    graph = graph_of(str(fixtures / "hf/ckpt" / name))
    chunks = [[(7 * n + 31 * at) % graph.sizes["n_vocab"] for at in range(33)] for n in range(3)]
    exact = measure(graph, chunks, recorder=Recorder(graph, "f32"))
    rounded = []
    for threads in (1, 2):
        rounded.append(Recorder(graph, "bf16"))
        rounded[-1].threads = threads
        measure(graph, chunks, recorder=rounded[-1])
    moved = 0.0
    for weight, rows in exact.sums.items():
        if name == "mixtral" and ("exps" in weight or "blk.1" in weight):  # a token near two experts may take the other
            continue
        for item, sums in rows.items():
            one, other = (recorder.sums[weight][item] for recorder in rounded)
            assert np.array_equal(one, other), weight
            moved = max(moved, float(np.linalg.norm(one - sums) / np.linalg.norm(sums)))
    assert 1e-5 < moved < 2e-2
    assert np.array_equal(exact.sums["blk.0.attn_q.weight"][0], rounded[0].sums["blk.0.attn_q.weight"][0])


def test_small_models_are_multiplied_in_float32(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(str(model))
    assert not Recorder(graph).bfloat16
    monkeypatch.setattr("ggferry.converters.forward.importance_matrix.is_large", lambda _: True)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)
    assert Recorder(graph).bfloat16 and not Recorder(graph, "f32").bfloat16
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    assert not Recorder(graph).bfloat16 and Recorder(graph, "bf16").bfloat16


def test_inputs_are_summed_beside_their_squares(model: Path) -> None:
    """The first matrix of a block reads the normed embeddings, computed here of weights that safetensors reads."""
    tokens = [5, 77, 130, 9, 260, 31]
    recorder = measure(graph_of(str(model)), [tokens])
    weights = load_file(model / "model.safetensors")
    rows = weights["model.embed_tokens.weight"][tokens].double().numpy()
    epsilon = json.loads((model / "config.json").read_text())["rms_norm_eps"]
    scale = weights["model.layers.0.input_layernorm.weight"].double().numpy()
    inputs = rows / np.sqrt((rows**2).mean(1, keepdims=True) + epsilon) * scale
    for name in ("blk.0.attn_q.weight", "blk.0.attn_v.weight"):
        assert np.allclose(recorder.plain[name][0], inputs.sum(0), rtol=1e-4, atol=1e-4), name
        assert np.allclose(recorder.sums[name][0], (inputs**2).sum(0), rtol=1e-4), name


def test_an_earlier_matrix_without_sums_of_inputs_ends_them(model: Path, fixtures: Path, tmp_path: Path) -> None:
    words = text(tmp_path / "t.txt", fixtures, 0, 600)
    old = measured(model, tmp_path / "i.dat", texts=[words])
    new = measured(model, tmp_path / "i.gguf", texts=[words])
    for earlier, has in ((old, False), (new, True)):
        with read_imatrix(str(measured(model, tmp_path / "sum.gguf", texts=[words], in_files=[earlier]))) as matrix:
            found = matrix.activations("blk.0.attn_q.weight")
            assert (found is not None) is has
    with read_imatrix(str(new)) as once:
        first = once.activations("blk.0.attn_q.weight")
    assert found is not None and first is not None and np.allclose(found, 2 * first, rtol=1e-6)


@pytest.mark.slow
def test_a_text_of_weight_two_is_that_text_twice(model: Path, fixtures: Path, tmp_path: Path) -> None:
    a, b = text(tmp_path / "a.txt", fixtures, 0, 300), text(tmp_path / "b.txt", fixtures, 300, 700)
    weighed = measured(model, tmp_path / "w.gguf", texts=[f"{a}:2", b])
    twice = measured(model, tmp_path / "t.gguf", texts=[a, a, b])
    half = measured(model, tmp_path / "h.gguf", texts=[f"{a}:1.0", f"{b}:0.5"])
    with read_imatrix(str(weighed)) as one, read_imatrix(str(twice)) as other, read_imatrix(str(half)) as third:
        assert one.datasets == ("a.txt:2", "b.txt") and third.datasets == ("a.txt", "b.txt:0.5")
        for name, entry in one.entries.items():
            shape = (1, entry.values)
            assert entry.counts == other.entries[name].counts
            assert np.allclose(one.sums(name), other.sums(name), rtol=1e-6), name
            assert np.allclose(one.weights(name, shape), third.weights(name, shape), rtol=1e-6), name


def test_a_colon_in_a_name_is_no_weight(tmp_path: Path) -> None:
    (tmp_path / "a:2").write_text("x")
    assert path_and_number(f"{tmp_path}/a:2") == (f"{tmp_path}/a:2", 1.0)
    assert path_and_number(f"{tmp_path}/a:2:3") == (f"{tmp_path}/a:2", 3.0)
    assert path_and_number(r"C:\a.txt") == (r"C:\a.txt", 1.0) and path_and_number("b:0.5") == ("b", 0.5)


@pytest.mark.parametrize("weight", ["0", "-1", "1e9"])
def test_a_weight_that_weighs_nothing_is_refused(
    weight: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("x")
    given = ["imatrix", str(model), "--text", f"{tmp_path}/a.txt:{weight}", "-o", str(tmp_path / "o.gguf")]
    assert _run(given) == 2 and "weight" in capsys.readouterr().err


def chatting(model: Path, folder: Path, template: str | None = TEMPLATE) -> Path:
    """A copy of the model that has a chat template."""
    shutil.copytree(model, folder)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    more = {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **more}))
    return folder


def test_conversations_are_measured_as_the_template_renders_them(model: Path, tmp_path: Path) -> None:
    chat = chatting(model, tmp_path / "chat")
    lines = tmp_path / "c.jsonl"
    lines.write_text("\n\n".join(map(json.dumps, CHAT * 3)) + "\n")
    graph = graph_of(str(chat))
    tokenizer = load_tokenizer(graph.checkpoint, graph.sizes["n_vocab"])
    assert tokenizer is not None
    texts = rendered_texts(str(lines), tokenizer, str(chat))
    bos = "<|begin_of_text|>"
    assert texts[:2] == [
        f"{bos}<|user|>Which animals are there?<|assistant|>Two.",
        f"{bos}<|user|>And now, of which kind are the animals that you have seen there?",
    ]
    made = run(ImatrixRequest(chat, conversations=[f"{lines}:2"], out=tmp_path / "i.gguf", chunk_size=16))
    assert made.chunks and made.experts == ()
    with read_imatrix(str(tmp_path / "i.gguf")) as matrix:
        assert matrix.datasets == ("c.jsonl:2",)
        assert set(matrix.entries["blk.0.attn_q.weight"].counts) == {made.chunks * 16 * 2}


@pytest.mark.parametrize(
    ("line", "template", "error", "words"),
    [
        ("{", TEMPLATE, CorruptError, "JSON"),
        ('["x"]', TEMPLATE, CorruptError, "line 1"),
        ('{"messages": []}', TEMPLATE, MissingError, "line 1 has no messages"),
        ('{"messages": [{"content": "x"}]}', TEMPLATE, CorruptError, "role of a message of line 1"),
        (json.dumps(CHAT[0]), None, MissingError, "no chat template"),
        (json.dumps(CHAT[0]), "{{ raise_exception('not me') }}", UnsupportedError, "line 1.*not me"),
        (json.dumps(CHAT[0]), "{% for", UnsupportedError, "no Jinja"),
        (json.dumps(CHAT[0]), "{{ ''.__class__.__mro__ }}", UnsupportedError, "SecurityError"),
    ],
)
def test_what_is_no_conversation_is_named(
    line: str, template: str | None, error: type[Exception], words: str, model: Path, tmp_path: Path
) -> None:
    chat = chatting(model, tmp_path / "chat", template)
    (tmp_path / "c.jsonl").write_text(line + "\n")
    graph = graph_of(str(chat))
    tokenizer = load_tokenizer(graph.checkpoint, graph.sizes["n_vocab"])
    assert tokenizer is not None
    with pytest.raises(error, match=words):
        rendered_texts(str(tmp_path / "c.jsonl"), tokenizer, str(chat))


def test_experts_that_saw_little_are_named(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, words = fixtures / "hf/ckpt/mixtral", text(tmp_path / "t.txt", fixtures, 0, 700)
    given = ["imatrix", str(model), "--chunk-size", "16", "--chunks", "2", "-o", str(tmp_path / "i.gguf")]
    assert _run([*given, "--text", f"{words}:100"]) == 0
    printed = capsys.readouterr()
    assert "experts:" in printed.out and "saw fewer than 32 tokens" in printed.err and "a way out" in printed.err
    assert _run([*given, "--text", str(words), "--json", "--force"]) == 0
    found = json.loads(capsys.readouterr().out)["experts"]
    assert [sum(each["tokens"]) for each in found] == [2 * 32] * len(found), "two experts a token"


def test_blocks_are_in_their_order() -> None:
    class Node:
        shape = (2, 4, 4)

        class role:
            per_block = True

    names = [f"blk.{n}.ffn_{part}_exps.weight" for n in (10, 9) for part in ("up", "down")]
    recorder = Recorder.__new__(Recorder)
    recorder.graph = type("Graph", (), {"by_name": dict.fromkeys(names, Node)})()
    recorder.sums = {name: {} for name in names}
    recorder.kept = set()
    recorder.seen = {name: {1: 40 if "blk.9." in name else 7} for name in names}
    assert expert_tokens(recorder) == [
        ExpertTokens("blk.9.ffn_down_exps.weight", (0, 40)),
        ExpertTokens("blk.10.ffn_down_exps.weight", (0, 7)),
    ]
    assert expert_tokens(recorder)[0].little == (0,)
