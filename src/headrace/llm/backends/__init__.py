"""Servers of completions that are not ours: how they are started, asked, and given new weights."""
