"""The record of a run: the order of its events, its rows, and where a replay first differs from them."""
