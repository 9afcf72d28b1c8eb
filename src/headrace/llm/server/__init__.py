"""The HTTP server of completions: OpenAI's routes, and shorter ones of our own for the hot path."""
