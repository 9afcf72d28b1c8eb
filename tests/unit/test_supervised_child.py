"""What a child said before it left is heard, also by a supervisor that was just telling it something."""

from __future__ import annotations

from headrace.ipc.channel import Channel
from headrace.ipc.forkserver import Child
from headrace.supervision.child import SupervisedChild
from headrace.supervision.messages import Done, Stop
from headrace.supervision.policy import Phase
from headrace.supervision.spec import ChildSpec, Reported
from headrace.telemetry.board import Board


def test_last_words_survive_a_message_that_could_not_be_delivered(tmp_path):
    ours, theirs = Channel.pair()
    with Board.create(tmp_path / "board", [("learner", "learner")]) as board:
        spec = ChildSpec(id="learner", kind="learner", target="none:none", payload=lambda _: None)
        child = SupervisedChild(spec, board.slot("learner"), tmp_path, tmp_path)
        child._child = Child("learner", 0, ours, -1)
        child.life.move(Phase.STARTING)
        child.life.move(Phase.READY)
        theirs.send(Done({"updates": 7}), timeout_s=1.0)
        theirs.close()
        child.send(Stop("interrupted"))
        assert child.receive() == [Reported("learner", Done({"updates": 7}))]
        assert child.receive() == []
        child.close()
