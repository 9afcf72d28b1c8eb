"""Generates: continuous batching over a Hugging Face causal language model, with a key-value cache of our own."""
