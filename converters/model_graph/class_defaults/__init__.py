"""What transformers takes where a configuration is silent, from lists that tools make."""
