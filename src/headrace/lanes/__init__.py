"""Experience in shared memory: written once, sampled in place."""
