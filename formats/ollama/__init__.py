"""Ollama's store: names of models, manifests, and the blobs that they are made of."""
