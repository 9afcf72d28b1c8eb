"""The loop that samples and updates."""
