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


RAISES: dict[str, Any] = {
    "algorithm__critic__factory": "crash_networks:update__raises",
    "algorithm__critic__hidden": [256, 256],  # or it would be ignored
}
"""A network of the user's own that raises in an update."""


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("settings", "code", "summary"),
    [
        (NO_ROOM, "DAT-001", "its own"),
        (INFINITE, "ENV-003", "of another session"),
        (RAISES, "SUP-001", "none"),
    ],
)
def test_a_run_whose_learner_failed_is_replayed_to_the_same_failure(
    runs: Runs, settings: dict[str, Any], code: str, summary: str
):
    """Whatever became of its summary since: the record says it."""
    run = runs.train(kwargs={"limit": 50}, run__schedule="inline", run__steps=2000, **settings)
    assert run.summary["error"].startswith(f"[{code}] ")
    if summary == "none":
        (run.path / "summary.json").unlink()
    elif summary == "of another session":
        (run.path / "summary.json").write_text(json.dumps({**run.summary, "error": None, "outcome": "interrupted"}))
    said = headrace("replay", run.path, "--json")
    found = json.loads(said.stdout)
    assert (said.returncode, found["identical"], found.get("ended")) == (0, True, False)
    assert found["failed"] == run.summary["error"].partition("\n")[0]
    if summary == "none":
        assert f"there the learner failed, as is recorded: [{code}] " in headrace("replay", run.path).stdout


def test_a_learner_that_fails_in_the_replay_alone_differs(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    run = runs.train(run__schedule="inline", run__steps=400)

    def fail(*_: object) -> None:
        raise RuntimeError("not as in the run")

    with Replayer(run.path) as replayer:
        monkeypatch.setattr(replayer.learner, "update", fail)
        with pytest.raises(ReplayDiffers, match="the learner failed in the replay, and not so in the run"):
            replayer.run()
