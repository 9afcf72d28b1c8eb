"""What an orchestrator does: which rollouts are begun, how one is played, which become a batch, and what becomes of all."""
