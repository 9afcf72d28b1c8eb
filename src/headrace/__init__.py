"""Headrace: asynchronous reinforcement learning that does not hang, lose data, or learn something else."""
