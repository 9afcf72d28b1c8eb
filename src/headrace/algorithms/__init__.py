"""Algorithms as plain tensor code, one file each."""
