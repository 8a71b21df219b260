"""Outputs in the stores of programs that run models: Ollama's, LM Studio's."""
