"""Say where llama.cpp's loader and a file do not fit (`runtime_keys`), and which of that the user need not know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase, translate

from ggferry.converters.proof.runtime_keys import Finding, check, version
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.gguf.values import Value
from ggferry.support.records import dataclass

ITSELF = "the finding's own line"


@dataclass(frozen=True, slots=True)
class Explained:
    """A misfit between the loader and a file of ours that is as it should be, and why.

    Attributes:
        kind: Kind of the findings.
        of: Their architectures, separated by blanks; shell patterns.
        what: Their keys or tensors, separated by blanks; shell patterns.
        reason: Why it is as it should be.
        note: Part of the note in which the user learns what follows from it; where no note holds it, the finding's own
            line
            is shown.
    """

    kind: str
    of: str
    what: str
    reason: str
    note: str = ""


_WINDOWLESS = "llama qwen2 qwen2moe qwen2vl qwen3 qwen3moe starcoder2 smollm3 mistral3 dots1 arctic grovemoe qwen3tts"
EXPLAINED = (
    Explained("unread", "*", "*.vocab_size", "of the specification; llama.cpp counts tokenizer.ggml.tokens"),
    Explained("unread", "falcon", "*.tensor_data_layout", "of the specification; there is one order of rows"),
    Explained(
        "unread", "*", "tokenizer.ggml.cls_token_id tokenizer.ggml.separator_token_id",
        "of the specification; llama.cpp takes bos for cls, and misspells the other, which is written, too",
    ),
    Explained("unread", "*", "tokenizer.huggingface.json tokenizer.rwkv.world", "the vocabulary's source, kept whole"),
    Explained("unread", "*", "tokenizer.chat_template.* tokenizer.chat_templates", "more templates, asked for by name"),
    Explained("unread", "*", "quantize.imatrix.*", "says what the weights were rounded with"),
    Explained("unread", "stablelm", "*.use_parallel_residual", "llama.cpp sees it by the absence of a norm"),
    Explained("unread", "bert jina-bert-v3", "*.feed_forward_activation",
              "GELU by tanh, which llama.cpp computes in every bert"),
    Explained("unread", "gptneox", "*.feed_forward_activation", "llama.cpp does as it says; a remark has the rest"),
    Explained(
        "unread", "gpt2 starcoder starcoder2 falcon phi2", "*.feed_forward_activation", "llama.cpp has one GELU",
        "GELU by the error function",
    ),
    Explained(
        "unread", _WINDOWLESS, "*.attention.sliding_window *.attention.sliding_window_pattern",
        "llama.cpp has no window there", "attend to all of its context",
    ),
    Explained(
        "unread", "nemotron_h nemotron_h_moe", "*.ssm.time_step_min", "no bound in llama.cpp",
        "computes with the steps as they come",
    ),
    Explained(
        "unread", "minicpm3", "*.embedding_scale *.residual_scale *.logit_scale", "constants of llama.cpp",
        "computes with 12, 1.4 and 256",
    ),
    Explained("unread", "*", "*.rope.scaling.yarn_beta_*", "few read it", "llama.cpp computes with 32 and 1"),
    Explained(
        "unread", "gpt2 starcoder mpt gemma2 gemma3", "*.attention.scale", "fixed in llama.cpp", "attention.scale="
    ),
    Explained("unread", "qwen2moe qwen3moe", "*.expert_weights_norm", "fixed for each", "written, but llama.cpp does"),
    Explained(
        "unread", "ernie4_5-moe", "*.expert_weights_norm_min", "llama.cpp has a bound of its own",
        "but llama.cpp does not read it",
    ),
    Explained("unread", "gpt-oss", "*.yarn_truncate", "llama.cpp always rounds", "it rounds the range over which yarn"),
    Explained(
        "unread", "llama4", "*.attention.rope_pattern *.attention.temperature_*", "constants of llama.cpp",
        "llama.cpp runs this differently",
    ),
    Explained(
        "unread", "gemma3n",
        "*.attention.shared_kv_layers *.activation_sparsity_scale *.altup.num_inputs *.altup.active_idx"
        " *.embedding_length_per_layer_input *.final_logit_softcapping",
        "constants of llama.cpp; a remark tells of a model with others",
    ),
    Explained(
        "missing tensor", "gemma3n", "blk.{n}.attn_k_norm.weight",
        "transformers 5 saves none where they are taken over", "blocks take over keys and values from the 21st on",
    ),
    Explained("unread", "gpt2", "*.feed_forward_activation", "GELU in llama.cpp", "it computes GELU in every gpt2"),
    Explained("unread", "jais", "*.attention.scale", "fixed in llama.cpp", "it divides scores by the width of a head"),
    Explained(
        "unread tensor", "plm cohere2 command-r", "output.weight", "llama.cpp's has none", "an output of its own",
    ),
    Explained("unread", "olmoe", "*.expert_weights_norm", "never in llama.cpp", "sum to one in olmoe"),
    Explained("unread", "afmoe", "*.embedding_scale", "fixed in llama.cpp", "embeddings by the root of their width"),
    Explained("unread", "cohere2moe", "*.attention.rope_pattern", "fixed in llama.cpp", "it turns queries and keys in"),
    *(
        Explained("unread", name, "*.expert_weights_norm", "always in llama.cpp", f"sum to one in {name}")
        for name in ("kimi-linear", "lfm2moe", "mellum")
    ),
    Explained("unread", "mimo2", "*.expert_gating_func", "always sigmoid in llama.cpp"),
    Explained("unread", "mimo2", "*.expert_weights_norm", "always in llama.cpp", "sum to one in mimo2"),
    Explained("unread", "mimo2", "*.expert_weights_scale", "fixed at 1", "does not multiply the weights of experts"),
    Explained("unread", "step35", "*.leading_dense_block_count", "llama.cpp sees it by the tensors"),
    Explained("missing tensor", "minimax-m3 step35", "output.weight", "a tied model", "the output matrix is the token"),
    Explained("unread", "deepseek2-ocr", "*.attention.sliding_window", "no window", "llama.cpp lets it see all"),
    Explained("unread tensor", "chameleon", "*.bias", "llama.cpp has not all", "chameleon has no bias for"),
    Explained(
        "unread tensor",
        "cohere2 eurobert gemma gemma2 gemma3 gemma-embedding hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 mellum olmo"
        " olmo2 olmoe qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe step35",
        "blk.{n}.attn_output.bias", "llama.cpp has none", "the output of attention",
    ),
    Explained(
        "missing tensor",
        "arwkv7 bailingmoe bailingmoe2 dbrx deepseek4 dots1 glm5-next hy_v4 kimi-k3 maple mellum muse-glimmer"
        " rwkv6qwen2",
        "output.weight", "a tied model", "the output matrix is the token embedding",
    ),
    Explained("unread", "deepseek", "*.expert_weights_norm", "never in llama.cpp", "sum to one in deepseek"),
    Explained(
        "unread tensor", "bailingmoe", "blk.{n}.ffn_gate.weight blk.{n}.ffn_down.weight blk.{n}.ffn_up.weight",
        "experts everywhere in llama.cpp", "in bailingmoe it wants",
    ),
    Explained(
        "missing tensor", "bailingmoe",
        "blk.{n}.ffn_*_exps.weight blk.{n}.ffn_*_shexp.weight blk.{n}.ffn_gate_inp.weight",
        "experts everywhere in llama.cpp", "in bailingmoe it wants",
    ),
    Explained("unread", "ernie4_5-moe hunyuan-moe", "*.expert_shared_count", "their width says how large they are"),
    Explained("unread", "phimoe", "*.router_jitter_noise *.attention.sliding_window", "no such thing", "in phimoe it"),
    Explained(
        "unread tensor", "arcee ernie4_5 ernie4_5-moe paddleocr", "*.bias", "llama.cpp has not all",
        "llama.cpp does not",
    ),
    Explained("missing tensor", "phimoe", "output.bias blk.{n}.attn_output.bias", "runs none", "in phimoe it"),
    Explained("missing tensor", "apertus phimoe", "output.weight", "a tied model", "the output matrix is the token"),
    Explained("unread", "baichuan", "*.attention.max_alibi_bias", "told by blocks", "measures distances in one of"),
    Explained("unread", "bitnet", "*.feed_forward_activation", "silu in llama.cpp", "bitnet has silu there"),
    Explained("unread tensor", "bitnet", "output.weight", "llama.cpp's has none", "an output of its own"),
    Explained(
        "missing tensor", "pangu-embedded", "blk.{n}.attn_output.bias", "a model without", "llama.cpp expects one of",
    ),
    Explained("missing tensor", "jais2", "blk.{n}.*.bias", "a model without", "without biases: llama.cpp expects them"),
    Explained(
        "missing tensor", "baichuan codeshell internlm2 orion qwen xverse", "output.weight", "a tied model",
        "the output matrix is the token embedding",
    ),
    Explained(
        "unread", "dflash", "tokenizer.ggml.mask_token_id *.sample_from_anchor *.has_confidence_head",
        "llama.cpp's loop around the two models reads them",
    ),
    Explained("unread", "llada llada-moe", "diffusion.shift_logits", "llama-diffusion-cli reads it"),
    Explained("missing tensor", "llada-moe", "output.weight", "a tied model", "the output matrix is the token"),
    Explained("unread", "smallthinker", "*.attention.rope_pattern", "fixed in llama.cpp", "llama.cpp runs this differ"),
    Explained("unread", "smollm3", "*.attention.rope_pattern", "fixed in llama.cpp", "it turns queries and keys in"),
    Explained("unread", "qwen2vl", "*.layer_norm_rms_epsilon", "0 in llama.cpp", "never reads this family's epsilon"),
    Explained(
        "unread tensor", "seed_oss", "blk.{n}.attn_output.bias", "llama.cpp's has none",
        "no bias for the output of attention in seed_oss",
    ),
    Explained(
        "unread tensor", "smollm3", "blk.{n}.attn_output.bias blk.{n}.ffn_*.bias", "llama.cpp's has none",
        "smollm3 has no bias for",
    ),
    Explained("unread", "lfm2moe", "*.expert_weights_scale", "fixed at 1", "written, but llama.cpp does not do so"),
    Explained("unread", "glm-dsa", "*.rope.scaling.yarn_log_multiplier", "unknown there", "yarn's multiplier"),
    Explained("unread", "mamba", "*.ssm.dt_b_c_rms_epsilon", "llama.cpp has one epsilon", "kept as mamba.ssm.dt_b_c"),
    Explained("unread", "t5 t5encoder", "*.attention.relative_max_distance", "128 in llama.cpp; a remark has the rest"),
    Explained("unread", "t5", "*.logit_scale", "unknown to llama.cpp; a remark warns of all but 1"),
    Explained("unread", "bloom", "*.attention.max_alibi_bias", "8 in llama.cpp; no published BLOOM differs", ITSELF),
    Explained(
        "unread", "falcon", "*.attention.max_alibi_bias *.use_parallel_residual", "no such thing in llama.cpp's falcon",
        "llama.cpp's falcon always turns",
    ),
    Explained(
        "unread tensor", "falcon", "blk.{n}.*.bias blk.{n}.ffn_norm.*", "no such thing in llama.cpp's falcon",
        "llama.cpp's falcon always turns",
    ),
    Explained(
        "unread tensor", "deepseek32 dots3note glm-dsa hy_v4 minicpm3", "blk.{n}.attn_q.weight", "low rank",
        "come straight from the input",
    ),
    Explained(
        "missing tensor", "deepseek32 dots3note glm-dsa hy_v4 minicpm3",
        "blk.{n}.attn_q_a.weight blk.{n}.attn_q_b.weight blk.{n}.attn_q_a_norm.weight", "low rank",
        "come straight from the input",
    ),
    Explained("unread tensor", "command-r", "blk.{n}.attn_output.bias", "llama.cpp has none", "the attention's output"),
    Explained("unread tensor", "gemma gemma2", "output.weight", "llama.cpp's has none", "an output of its own"),
    Explained("unread tensor", "phi3 minicpm3", "rope_freqs.weight", "none there", "rotary frequencies of Llama 3"),
    Explained(
        "missing tensor", "starcoder2 gptneox gpt2", "blk.{n}.*.bias", "a model without",
        "without biases: llama.cpp expects them",
    ),
    Explained(
        "missing tensor", "mamba mamba2", "blk.{n}.ssm_conv1d.bias", "a model without",
        "without biases: llama.cpp expects them",
    ),
    Explained(
        "missing tensor",
        "exaone-moe gpt-oss gptneox kimi-linear mimo2 minimax-m2 nemotron olmo2 olmoe phi2 plamo qwen2moe stablelm"
        " rwkv6 rwkv7",
        "output.weight", "a tied model", "the output matrix is the token embedding",
    ),
    Explained("missing", "*", "tokenizer.ggml.model", "asked for", "the output has no"),
)


def loads(architecture: str, metadata: Mapping[str, Value], tensors: Iterable[str]) -> bool:
    """Return whether llama.cpp loads and runs the model, and knows the kind of its vocabulary where it has one."""
    found = check(architecture, metadata, tensors)
    return all(
        finding.kind in ("unread", "otherwise", "unsafe")
        or (finding.what.startswith("tokenizer.") and finding.kind not in ("unknown", "aborts"))
        for finding in found
    )


def faults(checkpoint: Checkpoint, architecture: str, notes: Collection[str]) -> tuple[str, ...]:
    """Return why llama.cpp would not load, run or compute a GGUF file, a sentence each; without what it only ignores.

    Args:
        checkpoint: The file.
        architecture: Its architecture.
        notes: What is said to the user anyway.
    """
    tensors = checkpoint.tensors
    found = unexplained(check(architecture, checkpoint.metadata, tensors, vocab_only=not tensors), notes)
    return tuple(dict.fromkeys(finding.text for finding in found if finding.kind not in ("unread", "otherwise")))


def computed_differently(architecture: str, metadata: Mapping[str, Value], tensors: Iterable[str]) -> tuple[str, ...]:
    """Return in what respects llama.cpp's graph computes something else from the file's values, a sentence each."""
    return tuple(found.text for found in check(architecture, metadata, tensors) if found.kind == "otherwise")


def unexplained(findings: Iterable[Finding], notes: Collection[str]) -> tuple[Finding, ...]:
    """Return the findings that `notes` do not cover and that the user should know."""
    text = "\n".join(notes)
    explained: dict[tuple[str, str], re.Pattern[str]] = {}  # an untrusted file may have very many of a kind
    left = []
    for finding in findings:
        place = finding.kind, finding.architecture
        if place not in explained:
            explained[place] = _explained(*place, text)
        if not explained[place].match(finding.what):
            left.append(finding)
    return tuple(left)


def explains(notes: Iterable[str]) -> bool:
    """Return whether some note holds what `unexplained` takes for an explanation."""
    return any(rule.note and rule.note in note for note in notes for rule in EXPLAINED)


def _explained(kind: str, architecture: str, text: str) -> re.Pattern[str]:
    """Return a pattern of what findings of this kind may rightly name in a file of this architecture."""
    rules = (
        rule
        for rule in EXPLAINED
        if rule.kind == kind and rule.note in text and any(fnmatchcase(architecture, one) for one in rule.of.split())
    )
    return re.compile("|".join(translate(pattern) for rule in rules for pattern in rule.what.split()) or "(?!)")


def runtime_notes(
    architecture: str,
    metadata: Mapping[str, Value],
    tensors: Iterable[str],
    notes: Collection[str],
    *,
    vocab_only: bool = False,
) -> tuple[str, ...]:
    """Return lines for the user: where llama.cpp's loader and this file do not fit and `notes` do not say so already.

    Names of what the loader does not read share a line.
    """
    found = unexplained(check(architecture, metadata, tensors, vocab_only=vocab_only), notes)
    lines = [finding.text for finding in found if not finding.kind.startswith("unread")]
    for kind, text in (("unread", "does not read {}"), ("unread tensor", "would refuse the file for its tensors {}")):
        names = [finding.what for finding in found if finding.kind == kind]
        more = f" and {len(names) - 4} more" if names[4:] else ""
        lines += [f"llama.cpp {version()} {text.format(', '.join(names[:4]) + more)}"] if names else []
    return tuple(lines)
