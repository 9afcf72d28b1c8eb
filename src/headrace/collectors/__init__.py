"""The loop that steps environments."""
