"""LoRA adapters: their pairs bound to the base model's roles, planned, and proved by their products."""
