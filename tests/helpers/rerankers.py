"""Tiny rerankers as they are published: a causal Qwen3 asked for "yes" or "no", classifiers of pairs; and the scores of
transformers and of llama.cpp's endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from helpers.tiny_models import shake

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ASKED = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: {query}\n<Document>: {doc}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""What the model card of Qwen3-Reranker puts together, prefix and suffix."""
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "Which bird cannot fly?"
DOCUMENTS = ["The ostrich runs, it does not fly.", "no", "Käse schmeckt gut.", "A kiwi is a bird without wings"]
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
}


def qwen_tokenizer(folder: Path, *answers: str) -> Any:
    """Save a byte-level vocabulary like Qwen's in which the answers are single tokens; return transformers' reading."""
    tokens, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    for word in answers:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            tokens.append(word[:end])
    tokens = list(dict.fromkeys(tokens))
    made = Tokenizer(models.BPE(vocab={text: n for n, text in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in ("<think>", "</think>")])
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    whole.save_pretrained(folder)
    return whole


def qwen_reranker(
    folder: Path, kind: str = "Qwen3ForCausalLM", *answers: str, card: str = "# Qwen3-Reranker-0.6B", **changes: Any
) -> tuple[Any, Any]:
    """Save a random causal model with its card and its vocabulary; return both as transformers has them."""
    tokenizer = qwen_tokenizer(folder, *(answers or ("yes", "no")))
    torch.manual_seed(11)
    cls = getattr(transformers, kind)
    sizes = {**SIZES, "vocab_size": len(tokenizer) + 5, "eos_token_id": tokenizer.eos_token_id}
    if kind == "Qwen3ForCausalLM":
        config = cls.config_class(**{**sizes, **changes})
    else:
        tied = changes.pop("tie_word_embeddings", False)
        vision = {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        }
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
        text = {**sizes, "rope_parameters": rope, **changes}
        config = cls.config_class(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    model = cls(config).eval()
    shake(model)
    model.save_pretrained(folder)
    if card:
        (folder / "README.md").write_text(f"---\nlicense: apache-2.0\n---\n{card}\n\nWords.\n")
    return model, tokenizer


def published_scores(model: Any, tokenizer: Any, query: str, documents: Sequence[str]) -> np.ndarray:
    """The share of "yes" as the model card computes it."""
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    found = []
    for doc in documents:
        ids = tokenizer(ASKED.format(instruction=INSTRUCTION, query=query, doc=doc), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
        found.append(torch.log_softmax(torch.stack([logits[no], logits[yes]]), 0)[1].exp().item())
    return np.array(found, np.float32)


def pair_tokenizer(folder: Path) -> Any:
    """Save a WordPiece vocabulary; return transformers' reading."""
    letters = [chr(n) for n in range(33, 127)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    (folder / "vocab.txt").write_text("\n".join([*tokens, "bird", "fly", "##rich"]) + "\n")
    whole = transformers.BertTokenizer(str(folder / "vocab.txt"))
    whole.save_pretrained(folder)
    return whole


def piece_tokenizer(folder: Path) -> Any:
    """Save a unigram vocabulary in the order of XLM-RoBERTa's; return transformers' reading."""
    letters = [*map(chr, range(97, 123)), *map(chr, range(65, 91)), "?", ".", ",", "ä", "▁"]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((each, -5.0) for each in letters)]
    pieces += [("▁bird", -3.0), ("▁fly", -3.0), ("the", -3.5), ("<mask>", 0.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        clean_up_tokenization_spaces=False,
    )
    whole.save_pretrained(folder)
    return whole


SERVER = """
import json, sys
import xllamacpp
job = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path, params.embedding = job["model"], True
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 1024, 1, 0, False, -1
params.n_batch = params.n_ubatch = 1024
params.fit_params, params.no_extra_bufts = False, True
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
if "query" in job:
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
server = xllamacpp.Server(params)
if "query" in job:
    said = server.handle_rerank({"query": job["query"], "documents": job["documents"]})
    rows = sorted(said["results"], key=lambda row: row["index"])
    found = [row["relevance_score"] for row in rows]
else:
    found = [row["embedding"] for row in server.handle_embeddings({"input": job["texts"]})["data"]]
print("ANSWER", json.dumps(found))
"""


def _asked(job: dict[str, Any]) -> np.ndarray:
    done = subprocess.run(
        [sys.executable, "-c", SERVER, json.dumps(job)], capture_output=True, text=True, timeout=300, check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER ")), None)
    assert line is not None, done.stderr[-2000:]
    return np.array(json.loads(line.removeprefix("ANSWER ")), np.float32)


def reranked(path: str, query: str, documents: Sequence[str]) -> np.ndarray:
    """The scores of llama.cpp's endpoint, in the order of the documents."""
    return _asked({"model": path, "query": query, "documents": list(documents)})


def embedded(path: str, texts: Sequence[str]) -> np.ndarray:
    """The vectors of llama.cpp's endpoint."""
    return _asked({"model": path, "texts": list(texts)})
