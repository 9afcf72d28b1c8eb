"""Language-model RL: an inference server, an orchestrator of rollouts and a trainer, under one supervisor."""
