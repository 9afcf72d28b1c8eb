"""Helpers for tests, a user's and our own: faults to provoke, leaks to count, toys with exact answers."""
