"""What is said of llama.cpp from a file's own values is what llama.cpp does with the file, and nothing is said of a
sound neighbor."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.runtime_keys import check
from ggferry.converters.proof.runtime_notes import computed_differently, loads
from ggferry.converters.proof.runtime_rules.broken import broken
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import understand
from ggferry.formats.gguf.values import Value, array, f32, string, u32
from ggferry.formats.gguf.values import ValueType as T
from helpers import llama_api
from helpers.asked_llama_cpp import alike
from helpers.hf_llama import hf_llama
from helpers.models.sizes import YARN
from helpers.tiny import ROPE
from helpers.tiny_models import TOKENS, make, write

pytestmark = pytest.mark.filterwarnings("ignore")
Case = tuple[str, dict[str, Any], str]


def rope(**scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {**ROPE, **scaling}}


KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
QUICK: tuple[Case, ...] = (
    ("deepseek v3", rope(**YARN), "otherwise"),
    ("deepseek v3", rope(**YARN, mscale=0.7, mscale_all_dim=0.7), "alike"),
    ("granite hybrid", {"mamba_conv_bias": False}, "dies"),
    ("qwen3vl", {"num_hidden_layers": 2}, "dies"),
    ("gemma4 shared", {"num_kv_shared_layers": 2}, "dies"),
    ("qwen35", {"layer_types": ["full_attention"] * 4}, "dies"),
)
ATTENDS, STATE = ({"layer_types": [kind] * 4} for kind in ("full_attention", "linear_attention"))
SLOW: tuple[Case, ...] = (
    *((name, kinds, "dies") for name in ("qwen35moe", "qwen3next", "kimi linear") for kinds in (ATTENDS, STATE)),
    ("qwen35", STATE, "dies"),
    ("lfm2", {**ATTENDS, "num_hidden_layers": 4}, "dies"),
    ("lfm2", {"layer_types": ["conv"] * 4, "num_hidden_layers": 4}, "dies"),
    ("minimax-01", {"layer_types": ["full_attention"] * 3}, "dies"),
    ("minimax-01", {"layer_types": ["linear_attention"] * 3}, "dies"),
    ("jamba", {"attn_layer_period": 20, "attn_layer_offset": 19}, "dies"),
    ("granite hybrid dense", {"layer_types": ["mamba"] * 4, "num_hidden_layers": 4}, "dies"),
    ("nemotron-h", {"layers_block_type": ["mamba", "mlp"] * 2, "num_hidden_layers": 4}, "dies"),
    *((name, {}, "alike") for name in ("qwen35", "kimi linear", "lfm2", "minimax-01", "jamba", "ling 3")),
    ("deepseek v2", rope(**YARN, attention_factor=0.7), "otherwise"),
    ("deepseek v2", rope(**YARN, attention_factor=1.0), "alike"),
    ("deepseek v2", rope(**YARN, mscale=0.7), "otherwise"),
    ("deepseek v2", rope(**YARN, mscale_all_dim=0.7), "otherwise"),
    ("deepseek v2", rope(**YARN, mscale=0.7, mscale_all_dim=0.4), "otherwise"),
    ("deepseek v2", rope(**YARN, attention_factor=1.0, mscale=0.7, mscale_all_dim=0.4), "alike"),
    ("deepseek v2", rope(rope_type="linear", factor=3.0), "otherwise"),
    ("deepseek v2", rope(rope_type="linear", factor=1.0), "alike"),
    ("deepseek v2", {}, "alike"),
    ("llama yarn", {}, "alike"),
    ("llama yarn attention_factor", {}, "alike"),
    ("llama linear", {}, "alike"),
    ("falcon-h1", {}, "alike"),
    ("falcon-h1", {"mamba_conv_bias": False}, "dies"),
    ("granite hybrid", {}, "alike"),
    ("deepseek v3", {"n_group": 1, "topk_group": 1}, "alike"),
    ("minicpm3", {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-6}, "alike"),
    ("qwen35moe", {}, "alike"),
    ("qwen35moe", rope(partial_rotary_factor=0.5, mrope_section=[5, 4, 4]), "dies"),
    *(
        (name, {"n_group": count, "topk_group": count}, "alike")
        for count in (2, 4)
        for name in ("deepseek v3", "deepseek v2 groups", "glm4moe", "mistral4", "mimo2")
    ),
    *(("qwen3vlmoe", {"num_hidden_layers": count}, said) for count, said in ((1, "dies"), (2, "dies"), (3, "alike"))),
)


def said(path: Path) -> str:
    """What the rules say of a file."""
    file = open_checkpoint(str(path))
    name = file.metadata["general.architecture"].data
    if not loads(name, file.metadata, file.tensors):
        return "dies"
    return "otherwise" if computed_differently(name, file.metadata, file.tensors) else "alike"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "changes", "wanted"), QUICK)
def test_what_is_said_is_what_llama_cpp_does(name: str, changes: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", **changes)
    path = write(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path / "x.gguf")
    assert (said(path), alike(path, list(TOKENS))) == (wanted, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes", "wanted"), SLOW)
def test_so_it_is_of_more_values(name: str, changes: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    test_what_is_said_is_what_llama_cpp_does(name, changes, wanted, tmp_path)


@pytest.mark.parametrize("name", ["qwen2", pytest.param("olmo2", marks=pytest.mark.slow)])
def test_a_head_that_turns_in_part_ends_it_where_it_asserts_that_all_do(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    width = graph.hparams["n_rot"]
    for rotated, wanted in ((width.value, "alike"), (width.value - 2, "dies")):
        param = dataclasses.replace(width, value=rotated, known=Known.DECLARED)
        part = dataclasses.replace(graph, hparams={**graph.hparams, "n_rot": param})
        path = write(part, tmp_path / f"{rotated}.gguf")
        assert (said(path), alike(path, list(TOKENS))) == (wanted, wanted)


def rules(architecture: str, tensors: set[str], **keys: Value) -> list[str]:
    """The kinds of the rules that a file of these values breaks; '__' in a key stands for a dot."""
    metadata = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return [kind for kind, _ in broken(architecture, metadata, tensors)]


BLOCKS = {f"blk.{n}.attn_norm.weight" for n in range(6)}


@pytest.mark.parametrize(
    ("experts", "used", "groups", "groups_used", "wanted"),
    [
        (8, 2, 0, 0, []),
        (8, 9, 0, 0, ["aborts"]),
        (8, 0, 0, 0, ["aborts"]),
        (0, 2, 0, 0, ["aborts"]),
        (0, 0, 0, 0, []),
        (8, 2, 1, 1, []),
        (8, 2, 4, 3, []),
        (8, 2, 4, 4, ["aborts"]),
        (8, 2, 8, 2, ["aborts"]),
        (8, 2, 3, 2, ["aborts"]),
        (8, 8, 2, 1, []),
    ],
)
def test_counts_of_experts_that_it_asserts(
    experts: int, used: int, groups: int, groups_used: int, wanted: list[str]
) -> None:
    found = rules(
        "glm4moe",
        BLOCKS,
        block_count=u32(6),
        expert_count=u32(experts),
        expert_used_count=u32(used),
        expert_group_count=u32(groups),
        expert_group_used_count=u32(groups_used),
        leading_dense_block_count=u32(0 if experts else 6),
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("architecture", "keys", "wanted"),
    [
        ("glm4moe", {"leading_dense_block_count": 5}, "no experts"),
        ("glm4moe", {"leading_dense_block_count": 6}, ""),
        ("qwen3moe", {}, "no experts"),
        ("qwen3moe", {"expert_count": 4, "expert_used_count": 2}, ""),
        ("lfm2", {}, ""),
        ("lfm2moe", {"leading_dense_block_count": 2}, "no experts"),
        ("granitehybrid", {"ssm.inner_size": 96, "embedding_length": 64}, "a state space 96 wide"),
        ("granitehybrid", {"ssm.inner_size": 128, "embedding_length": 64}, ""),
        ("mamba", {"ssm.inner_size": 64, "embedding_length": 64}, "twice that only"),
        ("mamba2", {"ssm.inner_size": 64, "embedding_length": 64}, ""),
        (
            "mistral4",
            {"attention.key_length_mla": 16, "rope.dimension_count": 16, "expert_count": 2, "expert_used_count": 1},
            "16 of 16 columns",
        ),
        ("gemma4", {"attention.key_length_swa": 16, "attention.value_length_swa": 8}, "keys 16 wide and values 8"),
        ("gemma4", {"attention.key_length": 16, "attention.value_length": 8}, "keys 16 wide and values 8"),
        ("lfm2", {"attention.key_length": 16, "attention.value_length": 8}, "keys 16 wide and values 8"),
        ("minicpm", {"attention.key_length": 16, "attention.value_length": 8}, "keys 16 wide and values 8"),
        ("minicpm", {"attention.key_length": 16, "rope.dimension_count": 8}, "8 of 16 columns"),
        ("pangu-embedded", {"attention.key_length": 16, "rope.dimension_count": 8}, "8 of 16 columns"),
        ("gemma-embedding", {"dense_2_feat_in": 32, "embedding_length": 64}, "asserts that they are equal"),
        ("gemma-embedding", {"dense_2_feat_in": 64, "dense_3_feat_out": 64, "embedding_length": 64}, ""),
        (
            "hy_v4",
            {
                "attention.indexer.top_k": 4,
                "attention.indexer.key_length": 8,
                "rope.dimension_count": 8,
                "attention.key_length_mla": 16,
                "leading_dense_block_count": 6,
            },
            "8 of 8 columns of an indexer",
        ),
        (
            "hy_v4",
            {
                "attention.indexer.top_k": 4,
                "attention.indexer.key_length": 16,
                "rope.dimension_count": 8,
                "attention.key_length_mla": 16,
                "leading_dense_block_count": 6,
            },
            "",
        ),
        ("nanbeige", {"num_loops": 100}, "6 blocks in 100 loops"),
        ("nanbeige", {"num_loops": 2}, ""),
    ],
)
def test_values_that_its_loaders_and_graphs_assert(architecture: str, keys: dict[str, int], wanted: str) -> None:
    metadata = {f"{architecture}.{key}": u32(value) for key, value in {"block_count": 6, **keys}.items()}
    found = [text for kind, text in broken(architecture, metadata, BLOCKS) if kind == "aborts"]
    assert found == [] if not wanted else len(found) == 1 and wanted in found[0]


def test_scores_that_grow_by_a_context_that_no_key_states() -> None:
    scale = {"mistral3.attention.temperature_scale": f32(0.1), "mistral3.block_count": u32(6)}
    original = {"mistral3.rope.scaling.original_context_length": u32(4096)}
    assert [kind for kind, _ in broken("mistral3", scale, BLOCKS)] == ["aborts"]
    assert list(broken("mistral3", scale | original, BLOCKS)) == []


@pytest.mark.parametrize(("name", "wanted"), [("relu", ["aborts"]), ("silu", []), ("gelu_pytorch_tanh", [])])
def test_an_activation_that_a_draft_may_not_have(name: str, wanted: list[str]) -> None:
    keys = {"dflash.hidden_activation": string(name), "dflash.block_count": u32(1)}
    assert [kind for kind, _ in broken("dflash", keys, BLOCKS)] == wanted


def test_a_draft_that_reads_two_layers() -> None:
    for count, wanted in ((2, ["aborts"]), (3, [])):
        keys = {"eagle3.target_layers": array(T.INT32, range(count)), "eagle3.block_count": u32(1)}
        assert [kind for kind, _ in broken("eagle3", keys, BLOCKS)] == wanted


@pytest.mark.parametrize(("told", "wanted"), [({}, ["llama.cpp"]), ({"vocab": VocabOptions(none=True)}, [])])
def test_a_file_without_a_vocabulary_is_run_by_nobody(told: dict[str, Any], wanted: list[str], tmp_path: Path) -> None:
    source = str(hf_llama(tmp_path / "hf"))
    result = convert(Request(source, str(tmp_path / "x.gguf"), level="fast", **told))[0]
    assert result.receipt["runtimes"]["run_it"] == wanted
    assert bool(wanted) != any("it has no vocabulary" in note for note in result.receipt["notes"])
    assert llama_api.loads(tmp_path / "x.gguf") == [bool(wanted)]


def test_it_has_room_for_so_many_blocks() -> None:
    assert rules("llama", BLOCKS, block_count=u32(512)) == []
    assert rules("llama", {f"blk.{n}.attn_norm.weight" for n in range(513)}, block_count=u32(513)) == ["aborts"]


@pytest.mark.parametrize(
    ("windows", "shared", "wanted"),
    [
        ((True, True, False, True, True, False), 3, []),
        ((True, True, False, True, True, False), 2, ["aborts"]),
        ((True, True, False, True, True, False), 0, []),
        ((True, True, False, True, True, False), 5, ["aborts"]),
        ((False, True, True, True, True, True), 2, ["otherwise"]),  # of block 2 instead of block 3
        ((False, True, False, True, False, True), 1, []),
        ((True, False, True, False, True, False), 1, ["aborts"]),
    ],
)
def test_caches_that_blocks_take_over(windows: tuple[bool, ...], shared: int, wanted: list[str]) -> None:
    pattern = array(T.BOOL, windows)
    keys = {"block_count": u32(6), "attention__shared_kv_layers": u32(shared)}
    assert rules("gemma4", BLOCKS, attention__sliding_window_pattern=pattern, **keys) == wanted


def test_a_name_of_phi_3_without_its_tokens_is_run_by_nobody(tmp_path: Path) -> None:
    from ggferry.converters.conversion.request import Request
    from ggferry.converters.conversion.run import convert
    from helpers.third_party_fixtures import FIXTURES

    source = str(FIXTURES / "hf/ckpt/llama")
    trapped = convert(Request(source, str(tmp_path / "x.gguf"), model_name="Phi3 of mine"))[0]
    assert trapped.receipt["runtimes"] == {"run_it": [], "none": True}
    assert any("makes it look for" in note for note in trapped.receipt["notes"])
    assert trapped.lines[-1].endswith("llama.cpp does not run it (see the notes)")
    plain = convert(Request(source, str(tmp_path / "y.gguf"), model_name="another"))[0]
    assert plain.receipt["runtimes"] == {"run_it": ["llama.cpp"], "none": False}
    assert "llama.cpp" not in plain.lines[-1]


def test_the_multiplier_of_other_families_is_no_factor_of_scores() -> None:
    """Mistral 3 reads yarn's multiplier as it stands, for the turned columns alone."""
    log = 0.1 * math.log(4.0) + 1
    stretched = {
        "block_count": u32(6),
        "rope__scaling__type": string("yarn"),
        "rope__scaling__factor": f32(4.0),
        "rope__scaling__yarn_log_multiplier": f32(1.0),
    }
    assert rules("mistral3", BLOCKS, **stretched) == []
    assert rules("mistral3", BLOCKS, **stretched, rope__scaling__attn_factor=f32(log)) == []
    assert rules("mistral3", BLOCKS, **stretched | {"rope__scaling__yarn_log_multiplier": f32(0.5)}) == ["otherwise"]


def test_a_vocabulary_alone_is_held_against_no_rule() -> None:
    metadata = {"glm4moe.expert_count": u32(8), "glm4moe.block_count": u32(6)}
    found = check("glm4moe", metadata, (), vocab_only=True)
    assert not [finding for finding in found if finding.kind in ("aborts", "otherwise")]


ERNIE = {"moe_layer_interval": 2, "moe_num_shared_experts": 0}


@pytest.mark.parametrize(
    ("start", "blocks", "wanted"),
    [(1, 2, True), pytest.param(0, 2, False, marks=pytest.mark.slow), (2, 3, False)],
)
def test_ernie_with_experts_in_the_last_block_alone_is_run(
    start: int, blocks: int, wanted: bool, tmp_path: Path
) -> None:
    """Blocks 1, 3, 5 … of such a model have experts, and llama.cpp wants them in every block from the first on."""
    changes = {**ERNIE, "moe_layer_start_index": start, "num_hidden_layers": blocks, "moe_layer_end_index": -1}
    make("ernie4_5_moe between", tmp_path / "hf", **changes)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    assert ("llama.cpp" in graph.runtimes) == wanted
    path = write(graph, tmp_path / "x.gguf")
    assert (alike(path, list(TOKENS)) == "alike") == wanted
