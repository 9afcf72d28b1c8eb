"""Environments that talk: what they are asked, word games, and puzzles over letters."""
