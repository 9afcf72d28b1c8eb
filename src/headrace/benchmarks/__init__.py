"""Our speed beside the peers that are installed: learners with ready batches, and trainings from their start to a target.

Every side, ours too, is a process of its own (`entry`), in whichever environment has what it needs. Modules that peers' processes
import know nothing of Headrace but each other: `sides`, `tasks`, `judging`, `updates`, `zoo`, `plain`, `plain_training`,
`sample_factory`, `rllib`.
"""
