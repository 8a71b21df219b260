"""Tiny models that see, by the class whose tower they have, and what transformers makes of a picture in each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.models.dots import DOTS, DOTS_EYES
from helpers.multimodal import TEXT, save

PIXELS = {"min_pixels": 1764, "max_pixels": 2304}
_QWEN = {"depth": 3, "hidden_size": 36, "intermediate_size": 56, "num_heads": 3, "out_hidden_size": 48, "patch_size": 6}
_PLAIN = {
    "hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 48,
    "patch_size": 6,
}


@dataclass(frozen=True, slots=True)
class VisionEncoder:
    """A tiny model that sees.

    Attributes:
        config: The class of its configuration.
        model: Its class.
        vision: Its tower's configuration.
        text: What its text model's configuration has besides `TEXT`.
        top: What its configuration has besides.
        size: Height and width of a picture in pixels.
        features: Returns transformers' rows for a model and a picture `(3, height, width)`.
        preprocessor: What its processor states besides.
        tokens: The ids of special tokens of its tokenizer, by their text.
    """

    config: str
    model: str
    vision: dict[str, Any]
    features: Callable[[Any, Any], Any]
    size: tuple[int, int] = (48, 48)
    text: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def saved(self, folder: Path, model: Any) -> Path:
        """Save the model with its processor's settings and its special tokens; return the folder."""
        save(folder, model, self.preprocessor)
        if self.tokens:
            added = {str(number): {"content": text} for text, number in self.tokens.items()}
            (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
        return folder

    def tiny(self, **vision: Any) -> Any:
        """Return a model with random weights; `vision` changes its tower's configuration."""
        import transformers

        config = getattr(transformers, self.config)
        found = config(text_config={**TEXT, **self.text}, vision_config={**self.vision, **vision}, **self.top)
        return getattr(transformers, self.model)(found)


def _flat(rows: Any) -> Any:
    """Return rows of one or several pictures as `(rows, width)`."""
    import torch

    found = torch.cat([_flat(part) for part in rows]) if isinstance(rows, list | tuple) else rows
    return found.reshape(-1, found.shape[-1])


def whole(model: Any, picture: Any) -> Any:
    """The features of a picture as it is."""
    return _flat(_seen(model, pixel_values=picture[None]))


def tiled(model: Any, picture: Any) -> Any:
    """The features of one picture of one sample."""
    return _flat(_seen(model, pixel_values=picture[None, None]))


def sized(model: Any, picture: Any) -> Any:
    """The features of a picture whose size is stated."""
    import torch

    sizes = torch.tensor([picture.shape[1:]])
    return _flat(_seen(model, pixel_values=picture[None], image_sizes=sizes))


BREAK = 7
"""The id of the token [IMG_BREAK]."""


def ended(model: Any, picture: Any) -> Any:
    """The features of a picture whose size is stated; every row of it but the last ends with a token's embedding."""
    import torch

    side = model.config.vision_config.patch_size * model.config.spatial_merge_size
    rows, columns = (size // side for size in picture.shape[1:])
    found = sized(model, picture).view(rows, columns, -1)
    end = model.get_input_embeddings().weight[BREAK].expand(rows, 1, -1)
    return torch.cat((found, end), 1).flatten(0, 1)[:-1]


def one_frame(model: Any, picture: Any) -> Any:
    """The features of patches in the order of their squares, a frame each; experts in float64, too."""
    for module in model.modules():  # each block has a configuration of its own
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"
    return squares(model, picture, 1)


def squares(model: Any, picture: Any, span: int = 2) -> Any:
    """The features of patches in the order of their squares, of `span` frames each; and of deepstack blocks."""
    import torch

    size = model.config.vision_config.patch_size
    _, height, width = picture.shape
    rows, columns = height // size, width // size
    cut = picture.view(3, rows // 2, 2, size, columns // 2, 2, size).permute(1, 4, 2, 5, 0, 3, 6)
    frames = cut.reshape(rows * columns, 3, 1, size, size).repeat(1, 1, span, 1, 1).flatten(1)
    found = _features(model)(pixel_values=frames, image_grid_thw=torch.tensor([[1, rows, columns]]))
    deep = getattr(found, "deepstack_features", None) or ()
    return torch.cat([_flat(found.pooler_output), *(_flat(rows) for rows in deep)], -1)


def lists(model: Any, picture: Any) -> Any:
    """The features of patches in the order of reading, each a list of its planes."""
    return patches(model, picture, flat=True)


def patches(model: Any, picture: Any, flat: bool = False) -> Any:
    """The features of patches in the order of reading."""
    import torch

    size = model.config.vision_config.patch_size
    _, height, width = picture.shape
    rows, columns = height // size, width // size
    cut = picture.view(3, rows, size, columns, size).permute(1, 3, 0, 2, 4).reshape(-1, 3, size, size)
    given = cut.flatten(1) if flat else cut
    return _flat(_seen(model, pixel_values=given, image_grid_thw=torch.tensor([[1, rows, columns]])))


def pixels(model: Any, picture: Any) -> Any:
    """The features of patches as lists of pixels."""
    import torch

    size = model.config.vision_config.patch_size
    _, height, width = picture.shape
    rows, columns = height // size, width // size
    cut = picture.view(3, rows, size, columns, size).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
    mask = torch.ones(1, rows * columns, dtype=torch.int64)
    shapes = torch.tensor([[rows, columns]])
    return _flat(_seen(model, pixel_values=cut, spatial_shapes=shapes, pixel_attention_mask=mask))


def packed(model: Any, picture: Any) -> Any:
    """The features of patches side by side in one row (MiniCPM-V)."""
    import torch

    size = model.config.vision_config.patch_size
    _, height, width = picture.shape
    rows, columns = height // size, width // size
    cut = picture.view(3, rows, size, columns, size).permute(0, 2, 1, 3, 4).reshape(1, 3, size, -1)
    return _flat(_seen(model, pixel_values=cut, target_sizes=torch.tensor([[rows, columns]])))


def unnormed(model: Any, picture: Any) -> Any:
    """The features of patches of two frames in the order of reading, before the text model's norm of them."""
    import torch

    inner, size = model.model, model.config.vision_config.patch_size
    _, height, width = picture.shape
    rows, columns = height // size, width // size
    cut = picture.view(3, rows, size, columns, size).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    seen = inner.vision_tower(pixel_values=cut.repeat(1, 2), grid_thw=torch.tensor([[1, rows, columns]]))
    return _flat(inner.vision_projection(inner.vision_adapter(seen.last_hidden_state)))


def one_tile(model: Any, picture: Any) -> Any:
    """The features of a picture as one tile, before they are put together (LLaVA 1.6)."""
    states = model.model.vision_tower(picture[None], output_hidden_states=True).hidden_states
    return _flat(model.model.multi_modal_projector(states[model.config.vision_feature_layer][:, 1:]))


def projected(model: Any, picture: Any) -> Any:
    """The features of a tower whose projector is applied apart (Llama 4)."""
    found = _features(model)(pixel_values=picture[None])
    return _flat(model.multi_modal_projector(found.last_hidden_state))


def _features(model: Any) -> Any:
    inner = getattr(model, "model", model)
    return inner.get_image_features if hasattr(inner, "get_image_features") else model.get_image_features


def _seen(model: Any, **given: Any) -> Any:
    found = _features(model)(**given)
    return getattr(found, "pooler_output", found)


VISION_ENCODERS = {
    "qwen2vl_merger": VisionEncoder(
        "Qwen2VLConfig", "Qwen2VLForConditionalGeneration",
        {"depth": 3, "embed_dim": 36, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 3, "patch_size": 6},
        squares, (48, 60), {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    ),
    "qwen2.5vl_merger": VisionEncoder(
        "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
        {**_QWEN, "depth": 4, "hidden_size": 24, "patch_size": 8, "window_size": 112, "fullatt_block_indexes": [1, 3]},
        squares, (128, 144), {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    ),
    "qwen3vl_merger": VisionEncoder(
        "Qwen3VLConfig", "Qwen3VLForConditionalGeneration",
        {**_QWEN, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2]}, squares, (48, 60),
        {"head_dim": 16},
    ),
    "qwen3.5": VisionEncoder(
        "Qwen3_5Config", "Qwen3_5ForConditionalGeneration", {**_QWEN, "num_position_embeddings": 64}, squares, (60, 48),
        {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "glm4v": VisionEncoder(
        "Glm4vConfig", "Glm4vForConditionalGeneration",
        {**_QWEN, "hidden_size": 24, "image_size": 48}, squares, (48, 36),
    ),
    "glm_ocr": VisionEncoder(
        "GlmOcrConfig", "GlmOcrForConditionalGeneration", {**_QWEN, "hidden_size": 24, "image_size": 48}, squares,
        (36, 48),
    ),
    "exaone4_5": VisionEncoder(
        "Exaone4_5_Config", "Exaone4_5_ForConditionalGeneration",
        {**_QWEN, "depth": 4, "hidden_size": 32, "num_heads": 4, "num_key_value_heads": 2, "patch_size": 8,
         "window_size": 112, "fullatt_block_indexes": [1, 3]},
        squares, (128, 144), {"model_type": "exaone4"}, preprocessor=PIXELS,
    ),
    "pixtral": VisionEncoder(
        "Mistral3Config", "Mistral3ForConditionalGeneration",
        {**_PLAIN, "model_type": "pixtral", "head_dim": 8, "hidden_act": "silu"}, ended, (48, 36),
        {"model_type": "mistral"}, {"spatial_merge_size": 2},
        tokens={"[IMG_BREAK]": BREAK},
    ),
    "lightonocr": VisionEncoder(
        "LightOnOcrConfig", "LightOnOcrForConditionalGeneration",
        {**_PLAIN, "model_type": "pixtral", "head_dim": 8, "hidden_act": "silu"}, sized, (48, 36),
        {"model_type": "qwen3", "head_dim": 8}, {"spatial_merge_size": 2},
    ),
    "paddleocr": VisionEncoder(
        "PaddleOCRVLConfig", "PaddleOCRVLForConditionalGeneration", _PLAIN, patches, (48, 60), {"head_dim": 8},
        preprocessor=PIXELS,
    ),
    "llama4": VisionEncoder(
        "Llama4Config", "Llama4ForConditionalGeneration",
        {**_PLAIN, "intermediate_size": 96, "vision_output_dim": 40, "projector_input_dim": 40,
         "projector_output_dim": 40, "pixel_shuffle_ratio": 0.5},
        projected, (48, 48),
        {"intermediate_size_mlp": 64, "num_local_experts": 2, "head_dim": 8, "attn_scale": 0.1},
    ),
    "internvl": VisionEncoder(
        "InternVLConfig", "InternVLForConditionalGeneration",
        {**_PLAIN, "image_size": [48, 48], "patch_size": [6, 6], "layer_scale_init_value": 0.1}, whole, (48, 48),
        {"model_type": "qwen2"}, {"downsample_ratio": 0.5},
    ),
    "idefics3": VisionEncoder(
        "SmolVLMConfig", "SmolVLMForConditionalGeneration", _PLAIN, tiled, (48, 48), {"model_type": "llama"},
        {"scale_factor": 2}, preprocessor={"size": {"longest_edge": 96}},
    ),
    "janus_pro": VisionEncoder(
        "JanusConfig", "JanusForConditionalGeneration", {**_PLAIN, "projection_dim": 48, "depth": 2, "mlp_ratio": 2.5},
        whole, (48, 48), {"model_type": "llama"},
        {"vq_config": {"embed_dim": 4, "num_embeddings": 8, "latent_channels": 8, "base_channels": 32,
                       "channel_multiplier": [1, 1], "num_res_blocks": 1, "num_hidden_layers": 1, "hidden_size": 8,
                       "projection_dim": 8, "image_token_embed_dim": 8}},
    ),
    "mlp": VisionEncoder(
        "LlavaConfig", "LlavaForConditionalGeneration",
        {**_PLAIN, "model_type": "clip_vision_model", "num_hidden_layers": 4, "projection_dim": 16}, whole, (48, 48),
        {"model_type": "llama"}, {"vision_feature_layer": -2},
    ),
    "llava_next": VisionEncoder(
        "LlavaNextConfig", "LlavaNextForConditionalGeneration",
        {**_PLAIN, "model_type": "clip_vision_model", "num_hidden_layers": 4, "projection_dim": 16}, one_tile, (48, 48),
        {"model_type": "llama"},
        {"vision_feature_layer": -2, "image_grid_pinpoints": [[48, 96], [96, 48], [96, 96], [144, 48]]},
    ),
    "lfm2": VisionEncoder(
        "Lfm2VlConfig", "Lfm2VlForConditionalGeneration",
        {"model_type": "siglip2_vision_model", "hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_patches": 64, "patch_size": 16, "vision_use_head": False},
        pixels, (96, 64), {"model_type": "lfm2"}, {"projector_hidden_size": 40}, preprocessor={"resample": 2},
    ),
    "cohere2v": VisionEncoder(
        "Cohere2VisionConfig", "Cohere2VisionForConditionalGeneration",
        {**_PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False}, whole, (48, 48),
        {"model_type": "cohere2", "head_dim": 8}, {"downsample_factor": 2, "alignment_intermediate_size": 40},
        {"max_patches": 12},
    ),
    "hunyuanvl": VisionEncoder(
        "HunYuanVLConfig", "HunYuanVLForConditionalGeneration",
        {"hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 6,
         "spatial_merge_size": 2, "out_hidden_size": 48, "text_hidden_size": 48, "max_image_size": 48},
        lists, (48, 60), {"head_dim": 8}, preprocessor=PIXELS,
    ),
    "kimik25": VisionEncoder(
        "Kimi_K25Config", "Kimi_K25ForConditionalGeneration",
        {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 6,
         "pos_emb_height": 8, "pos_emb_width": 8, "pos_emb_time": 4},
        patches, (48, 60),
        {"model_type": "deepseek_v3", "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
         "first_k_dense_replace": 1, "moe_intermediate_size": 16, "kv_lora_rank": 8, "q_lora_rank": 12,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1},
        {"projection_hidden_size": 48},
    ),
    "minimax_m3": VisionEncoder(
        "MiniMaxM3VLConfig", "MiniMaxM3SparseForConditionalGeneration",
        {**_PLAIN, "hidden_size": 160, "num_attention_heads": 2}, squares, (48, 60),
        {"head_dim": 8, "rotary_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16,
         "dense_intermediate_size": 24, "shared_intermediate_size": 16}, {"projector_hidden_size": 40},
    ),
    "step3vl": VisionEncoder(
        "Step3p7Config", "Step3p7ForConditionalGeneration", {**_PLAIN, "mlp_ratio": 2.5}, whole, (48, 72),
        {"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "share_expert_dim": 16, "layer_types": ["full_attention"] * 2, "moe_layers_enum": "1"},
    ),
    "qwen4exp": VisionEncoder(
        "Qwen4ExpConfig", "Qwen4ExpForConditionalGeneration",
        {**_QWEN, "num_position_embeddings": 64, "deepstack_visual_indexes": []}, squares, (60, 48),
        {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 16, "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1,
         "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "glm5v": VisionEncoder(
        "Glm5NextConfig", "Glm5NextForConditionalGeneration",
        {**_QWEN, "hidden_size": 24, "image_size": 48, "swiglu_limit": 0.25, "projection_intermediate_size": 40},
        squares, (48, 36),
        {"num_key_value_heads": 6, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "n_shared_experts": 1, "linear_head_dim": 8, "linear_num_heads": 6, "kv_lora_rank": 8, "q_lora_rank": 12,
         "qk_rope_head_dim": 0, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_head_dim": 16, "index_n_heads": 2,
         "n_group": 1, "topk_group": 1, "layer_types": ["linear_attention", "indexed_attention"],
         "indexer_types": ["full", "full"], "mlp_layer_types": ["dense", "sparse"]},
        preprocessor={"min_image_tokens": 16, "max_image_tokens": 4096},
    ),
    "deepseekocr": VisionEncoder(
        "UnlimitedOcrConfig", "UnlimitedOcrForConditionalGeneration",
        {"sam_config": {"hidden_size": 24, "output_channels": 16, "num_hidden_layers": 4, "num_attention_heads": 3,
                        "image_size": 256, "patch_size": 16, "window_size": 14, "mlp_dim": 40,
                        "downsample_channels": [20, 36]},
         "encoder_config": {"hidden_size": 36, "intermediate_size": 56, "num_hidden_layers": 4,
                            "num_attention_heads": 3, "image_size": 16, "patch_size": 4}},
        whole, (256, 256),
        {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    ),
    "minicpmv4_6": VisionEncoder(
        "MiniCPMV4_6Config", "MiniCPMV4_6ForConditionalGeneration", {**_PLAIN, "image_size": 420}, packed, (48, 72),
        {"model_type": "qwen3_5_text", "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
        {"insert_layer_id": 1}, {"scale_resolution": 448},
    ),
    "deepseekocr2": VisionEncoder(
        "DeepseekOcr2Config", "DeepseekOcr2ForConditionalGeneration",
        {"sam_config": {"hidden_size": 24, "output_channels": 16, "num_hidden_layers": 4, "num_attention_heads": 3,
                        "image_size": 768, "patch_size": 16, "window_size": 14, "mlp_dim": 40,
                        "downsample_channels": [20, 32]},
         "encoder_config": {"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 4,
                            "num_attention_heads": 4, "num_key_value_heads": 2,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}},
        whole, (768, 768),
        {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
         "mlp_layer_types": ["dense", "sparse"]},
    ),
    "dots3note_v": VisionEncoder(
        "Dots3NoteConfig", "Dots3NoteForConditionalGeneration",
        {"hidden_size": 24, "intermediate_size": 40, "moe_intermediate_size": 16, "num_hidden_layers": 5,
         "num_attention_heads": 3, "patch_size": 6, "adapter_in_dim": 24, "adapter_out_dim": 48,
         "pyramid_num_routed": [-1, 4, 1, 0, 6]},
        one_frame, (48, 60), DOTS, {"audio_config": DOTS_EYES["audio_config"]}, PIXELS,
    ),
    "muse-glimmer": VisionEncoder(
        "MuseGlimmerConfig", "MuseGlimmerForConditionalGeneration",
        {"hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 6, "num_attention_heads": 3, "patch_size": 6,
         "pos_emb_height": 8, "pos_emb_width": 8},
        unnormed, (48, 48),
        {"head_dim": 8}, {"out_hidden_size": 96, "projector_hidden_size": 40},
    ),
}
