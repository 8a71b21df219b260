"""Mistakes in what predicts further tokens: in the tables that carry such blocks, and in the layout of two matrices."""

from __future__ import annotations

from laws.mutations.rows import Planted, among

A = "converters.architectures."

NEXT_TOKENS: tuple[Planted, ...] = (
    *among(
        A + "_nextn",
        ("count of further blocks misspelt", "glm 5.3 that drafts", "loader", 'COUNT = "nextn_predict_layers"',
         'COUNT = "nextn_layers"'),
    ),
    *among(
        A + "mimo2",
        ("last norm of MiMo's further block in another place", "mimo2 that drafts", "loader",
         "layer_output_norm.weight f32 when=n >= n_layer ", "layer_out_norm.weight f32 when=n >= n_layer "),
    ),
    *among(
        A + "nemotron_h_moe",
        ("last norm of Nemotron's further block in another place", "nemotron-h that drafts", "loader",
         'tensors.norm("nextn.shared_head_norm", "shared_head.norm")',
         'tensors.norm("nextn.head_norm", "shared_head.norm")'),
    ),
    *among(
        A + "_qwen4",
        ("norm of the streams that Qwen4-Exp drafts by as it is", "qwen4exp that drafts", "logits",
         'width="n_streams*n_embd", layout=ADD_ONE),\n                *connection',
         'width="n_streams*n_embd"),\n                *connection'),
        ("norm of the tokens that Qwen4-Exp drafts by as it is", "qwen4exp that drafts", "logits",
         '"pre_fc_norm_embedding", layout=ADD_ONE)', '"pre_fc_norm_embedding")'),
    ),
    *among(
        "converters.schema.layouts.columns",
        ("two matrices stand the other way round", "qwen4exp that drafts", "logits",
         "np.concatenate(arrays, axis=-1)", "np.concatenate(arrays[::-1], axis=-1)"),
    ),
)
