"""Roles of vision transformers of the SigLIP kind, under Hugging Face's names, which several projectors share."""

from math import isqrt

from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import Roles, block, roles

NAMES = (
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_model.", "vision_tower."),
    ("vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.connector.", "connector."),
)
"""The prefixes of several versions of transformers (`Dialect.renames`)."""


def tower(positions: str = "(v_image_size/v_patch_size)*(v_image_size/v_patch_size)") -> Roles:
    """Return the roles of the whole tower. `positions`: rows of the table of positions."""
    ends = roles(
        f"""
        v.patch_embd.weight plain  : v_n_embd 3 v_patch_size v_patch_size | hf patch_embedding.weight
        v.patch_embd.bias          : v_n_embd                             | hf patch_embedding.bias
        v.position_embd.weight f32 : {positions} v_n_embd                 | hf position_embedding.weight
        """,
        under={"hf": "vision_tower.embeddings."},
    )
    return roles(ends, LAST_NORM, BLOCKS)


LAST_NORM = roles("""
    v.post_ln.weight f32 : v_n_embd | hf vision_tower.post_layernorm.weight
    v.post_ln.bias       : v_n_embd | hf vision_tower.post_layernorm.bias
    """)

BLOCKS = block(
    """
    ln1.weight f32  : v_n_embd          | hf layer_norm1.weight
    ln1.bias        : v_n_embd          | hf layer_norm1.bias
    attn_q.weight   : v_n_embd v_n_embd | hf self_attn.q_proj.weight
    attn_q.bias     : v_n_embd          | hf self_attn.q_proj.bias
    attn_k.weight   : v_n_embd v_n_embd | hf self_attn.k_proj.weight
    attn_k.bias     : v_n_embd          | hf self_attn.k_proj.bias
    attn_v.weight   : v_n_embd v_n_embd | hf self_attn.v_proj.weight
    attn_v.bias     : v_n_embd          | hf self_attn.v_proj.bias
    attn_out.weight : v_n_embd v_n_embd | hf self_attn.out_proj.weight
    attn_out.bias   : v_n_embd          | hf self_attn.out_proj.bias
    ln2.weight f32  : v_n_embd          | hf layer_norm2.weight
    ln2.bias        : v_n_embd          | hf layer_norm2.bias
    ffn_up.weight   : v_n_ff v_n_embd   | hf mlp.fc1.weight
    ffn_up.bias     : v_n_ff            | hf mlp.fc1.bias
    ffn_down.weight : v_n_embd v_n_ff   | hf mlp.fc2.weight
    ffn_down.bias   : v_n_embd          | hf mlp.fc2.bias
    """,
    name="v.blk.{n}.",
    layer="vision_tower.encoder.layers.{n}.",
)


def patches_a_square(values: Values) -> int:
    """Return how many patches in a row, and in a column, are averaged: a picture has `mm_tokens` squares."""
    side = isqrt(values["mm_tokens"])
    if side < 1:
        raise ValueError(f"{values['mm_tokens']} squares of a picture")
    return int(values["v_image_size"] // values["v_patch_size"] // side)
