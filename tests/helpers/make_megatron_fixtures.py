"""Write `fixtures/training/megatron/` by megatron-core, on processes that speak over the loopback.

    pip download --no-deps megatron-core einops      # 0.16.1 and 0.8.2, unzipped into FOLDER; they are not installed
    python tests/helpers/make_megatron_fixtures.py FOLDER

Each tiny model is laid over several processes (tensors, pipeline, experts), and saved twice: as `torch_dist` by
`dist_checkpointing.save`, and as `mp_rank_…/model_optim_rng.pt`, as Megatron-LM's `save_checkpoint` names and fills it.
Then one process loads the former by megatron-core's own `dist_checkpointing.load`, which puts the pieces together, and
`expected.npz` gets the logits that its model computes.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "fixtures" / "training" / "megatron"
VOCAB = 100  # of the tokenizer; Megatron pads it to a multiple of 128 for each tensor rank
IDS = [3, 17, 42, 8, 99, 0, 55, 23]
BASE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "group_query_attention": True,
    "kv_channels": 8,
    "max_position_embeddings": 64,
    "seq_length": 64,
    "position_embedding_type": "rope",
    "rotary_base": 10000,
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "use_rope_scaling": False,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-5,
    "swiglu": True,
    "squared_relu": False,
    "openai_gelu": False,
    "bias_gelu_fusion": False,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "apply_layernorm_1p": False,
    "untie_embeddings_and_output_weights": True,
    "num_experts": None,
    "moe_router_topk": 2,
    "moe_router_pre_softmax": False,
    "moe_ffn_hidden_size": None,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "expert_model_parallel_size": 1,
    "padded_vocab_size": 256,
    "make_vocab_size_divisible_by": 128,
    "vocab_size": VOCAB,
    "bf16": True,
    "params_dtype": torch.bfloat16,
    "ckpt_format": "torch_dist",
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"add_qkv_bias": True, "untie_embeddings_and_output_weights": False},
    "qwen3": {"qk_layernorm": True, "kv_channels": 16, "rotary_base": 1000000, "norm_epsilon": 1e-6},
    "mixtral": {"num_experts": 4, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 2},
    "qwen3moe": {
        "num_experts": 4,
        "qk_layernorm": True,
        "moe_ffn_hidden_size": 24,
        "tensor_model_parallel_size": 1,
        "expert_model_parallel_size": 2,
        "padded_vocab_size": 128,
    },
    "nemotron": {
        "normalization": "LayerNorm",
        "swiglu": False,
        "squared_relu": True,
        "apply_layernorm_1p": True,
        "rotary_percent": 0.5,
    },
    "gpt2": {
        "normalization": "LayerNorm",
        "swiglu": False,
        "position_embedding_type": "learned_absolute",
        "num_query_groups": 4,
        "group_query_attention": False,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "bias_gelu_fusion": True,
        "untie_embeddings_and_output_weights": False,
    },
}


class Norm(torch.nn.Module):
    """A norm as Apex and TransformerEngine compute it, which need a GPU: zero-centered weights have one added."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.config, self.eps = config, eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size)) if config.normalization == "LayerNorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight + 1 if self.config.layernorm_zero_centered_gamma else self.weight
        if self.bias is not None:
            return torch.nn.functional.layer_norm(x, weight.shape, weight, self.bias, self.eps)
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)


def model(args: Namespace) -> Any:
    """The model of some arguments, or this process's part of it, as Megatron-LM's `gpt_builder` makes it."""
    from megatron.core import parallel_state as ps
    from megatron.core.activations import squared_relu
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    gelu = torch.nn.functional.gelu
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        kv_channels=args.kv_channels,
        normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon,
        gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu if args.swiglu else squared_relu if args.squared_relu else gelu,
        bias_activation_fusion=args.bias_gelu_fusion,
        add_bias_linear=args.add_bias_linear,
        add_qkv_bias=args.add_qkv_bias,
        layernorm_zero_centered_gamma=args.apply_layernorm_1p,
        qk_layernorm=args.qk_layernorm,
        num_moe_experts=args.num_experts,
        moe_router_topk=args.moe_router_topk,
        moe_ffn_hidden_size=args.moe_ffn_hidden_size if args.num_experts else None,
        moe_token_dispatcher_type="allgather",
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        sequence_parallel=bool(args.num_experts) and args.tensor_model_parallel_size > 1,
        pipeline_dtype=torch.bfloat16,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
    )
    spec = get_gpt_layer_local_spec(
        num_experts=args.num_experts, qk_layernorm=args.qk_layernorm, normalization=args.normalization
    )
    return GPTModel(
        config,
        spec,
        args.padded_vocab_size,
        args.max_position_embeddings,
        pre_process=ps.is_pipeline_first_stage(),
        post_process=ps.is_pipeline_last_stage(),
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    )


def begin(rank: int, args: Namespace, world: int) -> None:
    """Join the processes, without a GPU."""
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29419", RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment,return-value]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.cuda.Stream = lambda *_, **__: None  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()
    moe_utils.te_general_gemm = None
    WrappedTorchNorm.__new__ = lambda _, *args, **named: Norm(*args, **named)  # type: ignore[assignment]
    dist.init_process_group("gloo", rank=rank, world_size=world)
    ps.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
    )


def fill(part: Any) -> None:
    """Give every parameter random values that bfloat16 holds; what several processes share is the same in all."""
    from megatron.core import parallel_state as ps

    for name, value in part.named_parameters():
        tied = name == "output_layer.weight" and part.share_embeddings_and_output_weights
        name = "embedding.word_embeddings.weight" if tied else name
        number = sum(map(ord, name.partition("layers.")[2] or name))
        own = getattr(value, "tensor_model_parallel", False) * 100 * (1 + ps.get_tensor_model_parallel_rank())
        own += 1000 * ps.get_pipeline_model_parallel_rank() * ("layers." in name)
        own += 10000 * ps.get_expert_model_parallel_rank() * ("experts" in name)
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(number + own))
        around_one = "norm" in name and name.endswith("weight") and not part.config.layernorm_zero_centered_gamma
        value.data = (around_one + noise * (0.2 if value.ndim > 1 else 0.1)).bfloat16().float()


def write(rank: int, name: str, world: int) -> None:
    """Save this process's part of a model, in both forms."""
    from megatron.core import dist_checkpointing
    from megatron.core import parallel_state as ps

    args = Namespace(**BASE | MODELS[name])
    begin(rank, args, world)
    part = model(args)
    fill(part)
    part.bfloat16()
    common = {"args": args, "checkpoint_version": 3.0, "iteration": 7, "opt_param_scheduler": {"num_steps": 7}}
    classic = f"mp_rank_{ps.get_tensor_model_parallel_rank():02d}"
    if args.pipeline_model_parallel_size > 1:
        classic += f"_{ps.get_pipeline_model_parallel_rank():03d}"
    if args.expert_model_parallel_size > 1:
        classic += f"_{ps.get_expert_model_parallel_rank():03d}"
    moments = {0: {"exp_avg": torch.zeros(4)}}
    whole = common | {"model": part.state_dict_for_save_checkpoint(), "optimizer": {"state": moments}}
    folder = FOLDER / name / "torch" / "iter_0000007" / classic
    if ps.get_data_parallel_rank() == 0 or args.expert_model_parallel_size > 1:
        folder.mkdir(parents=True)
        torch.save(whole, folder / "model_optim_rng.pt")
    spread = FOLDER / name / "torch_dist" / "iter_0000007"
    if rank == 0:
        spread.mkdir(parents=True)
        for kind in ("torch", "torch_dist"):
            (FOLDER / name / kind / "latest_checkpointed_iteration.txt").write_text("7")
    dist.barrier()
    metadata = {"singleton_local_shards": name == "qwen2"}
    state = part.sharded_state_dict(metadata=metadata)
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    key = "optimizer.state.exp_avg.decoder.final_layernorm.weight"
    moment = ShardedTensor.from_rank_offsets(key, torch.zeros(32), replica_id=rank)
    dist_checkpointing.save(common | {"model": state, "optimizer": {"moment": moment}}, os.fspath(spread))
    dist.destroy_process_group()


def expect(rank: int, name: str, world: int) -> None:
    """Load what `write` saved as one process, and record what the model computes."""
    from megatron.core import dist_checkpointing

    alone = {f"{kind}_model_parallel_size": 1 for kind in ("tensor", "pipeline", "expert")}
    args = Namespace(**BASE | MODELS[name] | alone)
    begin(rank, args, world)
    whole = model(args).bfloat16()
    state = {"model": whole.sharded_state_dict(metadata={"singleton_local_shards": name == "qwen2"})}
    held = dist_checkpointing.load(state, os.fspath(FOLDER / name / "torch_dist" / "iter_0000007"))
    whole.load_state_dict(held["model"])
    whole.float().eval()
    ids = torch.tensor([IDS])
    places = torch.arange(len(IDS))[None]
    mask = torch.triu(torch.ones(len(IDS), len(IDS), dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        logits = whole(ids, places, mask)[0, :, :VOCAB]
    np.savez_compressed(FOLDER / name / "expected.npz", ids=np.array(IDS), logits=logits.numpy())
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    os.environ["PYTHONPATH"] = sys.argv[1]
    for each in sys.argv[2:] or MODELS:
        shutil.rmtree(FOLDER / each, ignore_errors=True)
        sizes = BASE | MODELS[each]
        ways = sizes["tensor_model_parallel_size"] * sizes["pipeline_model_parallel_size"]
        ways *= sizes["expert_model_parallel_size"]
        mp.spawn(write, (each, ways), nprocs=ways)
        mp.spawn(expect, (each, 1), nprocs=1)
