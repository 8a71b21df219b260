"""LoRA adapters: pairs of matrices are bound to the base model's weights, planned, and proved by their products."""
