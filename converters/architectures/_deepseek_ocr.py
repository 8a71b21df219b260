"""What DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR alone compute of their settings."""

from ggferry.converters.schema.derivations import Values


def experts_normed(values: Values) -> bool:
    """Return whether weights of experts are normed.

    DeepSeek does so where `norm_topk_prob` says it (`modeling_deepseekv2.py`), transformers' classes never.
    """
    own = str(values.get("hf_class"))
    return bool(values.get("norm_stated")) and "Unlimited" not in own and "DeepseekOcr2" not in own
