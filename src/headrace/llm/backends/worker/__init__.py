"""Holds the one module that vLLM's own interpreter imports; this folder, and nothing else of Headrace, is on its path."""
