"""Policy snapshots, from the learner to everyone who acts."""
