"""What mlx-lm makes of a checkpoint before it saves it: other names, experts in stacks, parts absorbed."""
