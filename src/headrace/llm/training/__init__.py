"""Training a language model on batches of rollouts: packing, gradient steps, publishing, checkpoints."""
