"""Shared memory, channels with deadlines, and child processes that leave nothing behind."""
