"""One run from configuration to summary, under any schedule."""
