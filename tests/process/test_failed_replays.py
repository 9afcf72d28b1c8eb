"""Runs whose learner fails by itself: the record replays to the same failure, and that is no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.errors import ReplayDiffers
from headrace.runtime.replayer import Replayer
from replay_support import headrace
from run_support import PPO, SAC, Runs

pytestmark = pytest.mark.process

NO_ROOM: dict[str, Any] = {
    **{key.replace(".", "__"): value for key, value in PPO.items()},
    "rollout__whole_episodes": True,
    "rollout__kept_rows": 20,
    "env__lanes": 1,
}
"""Episodes of 50 steps, of which more are to be kept than there is room for."""
INFINITE: dict[str, Any] = {
    **{key.replace(".", "__"): value for key, value in SAC.items()},
    "algorithm__critic_lr": 1e36,
    "collect__random_steps": 0,
    "replay__learning_starts": 32,
}
"""What is learned has no finite loss after some updates."""


@pytest.mark.parametrize(("settings", "code"), [(NO_ROOM, "DAT-001"), (INFINITE, "ENV-003")])
def test_a_run_whose_learner_failed_is_replayed_to_the_same_failure(runs: Runs, settings: dict[str, Any], code: str):
    run = runs.train(kwargs={"limit": 50}, run__schedule="inline", run__steps=2000, **settings)
    assert run.summary["error"].startswith(f"[{code}] ")
    said = headrace("replay", run.path, "--json")
    found = json.loads(said.stdout)
    assert (said.returncode, found["identical"], found["ended"]) == (0, True, False)
    assert found["failed"] == run.summary["error"].partition("\n")[0]
    assert "there the learner ended as in the run: [" in headrace("replay", run.path).stdout
    summary = run.path / "summary.json"
    summary.write_text(json.dumps({**run.summary, "error": None}))
    with (
        Replayer(run.path) as replayer,
        pytest.raises(ReplayDiffers, match="failed in the replay and not so in the run"),
    ):
        replayer.run()
