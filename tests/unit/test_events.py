"""events.jsonl: whole lines, from several writers, after a crash and on a full disk."""

from __future__ import annotations

import json
import os

import numpy as np

from headrace.core.clock import FakeClock
from headrace.runtime.history import read_history
from headrace.telemetry.events import EventLog, JsonLines, plain, read_events


def test_event_carries_time_process_and_facts(tmp_path):
    clock = FakeClock(100.0)
    with EventLog(tmp_path / "events.jsonl", clock) as log:
        clock.advance(2.5)
        log.emit("fault", "collector-0", "collector-0 died", pid=41, signal=9)
        log.emit("ready", "learner", "learner is ready")
    first, second = read_events(tmp_path / "events.jsonl")
    assert first == {
        "t_s": 2.5, "kind": "fault", "component": "collector-0", "pid": 41, "text": "collector-0 died", "signal": 9,
    }  # fmt: skip
    assert second["pid"] == os.getpid()


def test_processes_count_from_the_same_start(tmp_path):
    with EventLog(tmp_path / "e", FakeClock(130.0), started_s=100.0) as log:
        log.emit("ready", "learner", "")
    assert read_events(tmp_path / "e")[0]["t_s"] == 30.0


def test_two_writers_share_a_file(tmp_path):
    path = tmp_path / "e"
    with EventLog(path) as one, EventLog(path) as other:
        one.emit("a", "x", "")
        other.emit("b", "y", "")
        one.emit("c", "x", "")
    assert [event["kind"] for event in read_events(path)] == ["a", "b", "c"]


def test_one_line_is_one_write(tmp_path, monkeypatch):
    written = []
    real = os.write

    def write(handle, data):
        written.append(bytes(data))
        return real(handle, data)

    lines = JsonLines(tmp_path / "e")
    monkeypatch.setattr(os, "write", write)
    lines.append({"text": "two\nlines"})
    monkeypatch.undo()
    lines.close()
    assert written == [b'{"text": "two\\nlines"}\n']


def test_torn_tail_is_left_out(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b", "te')
    assert read_events(path) == [{"kind": "a"}]


def test_damage_in_the_middle_is_shown(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b'{"kind": "a"}\n{"ki\n[3]\n{"kind": "b"}\n')
    events = read_events(path)
    assert [event["kind"] for event in events] == ["a", "unreadable", "unreadable", "b"]
    assert events[1]["text"] == '{"ki'


def test_no_file_has_no_events(tmp_path):
    assert read_events(tmp_path / "nothing") == []


class FullDisk(JsonLines):
    """Has room for four bytes, then for none, then for everything."""

    answers = ("half", "none", "all", "all")

    def _write(self, line):
        answer, *self.answers = self.answers
        if answer == "none":
            raise OSError(28, "No space left on device")
        return super()._write(line[:4] if answer == "half" else line)


def test_full_disk_costs_lines_and_harms_no_other(tmp_path):
    lines = FullDisk(tmp_path / "e")
    assert [lines.append({"kind": str(n)}) for n in range(4)] == [False, False, True, True]
    lines.close()
    assert lines.lost == 2
    assert [event["kind"] for event in read_events(tmp_path / "e")] == ["unreadable", "2", "3"]


class LastByte(FullDisk):
    """Has room for one byte, then for everything."""

    answers = ("half", "all")

    def _write(self, line):
        return super()._write(line[:1] if self.answers[0] == "half" else line)


def test_an_empty_line_of_a_full_disk_is_no_damage_and_keeps_its_number(tmp_path):
    path = tmp_path / "e"
    event = {"t_s": 1.0, "kind": "ready", "component": "learner"}
    path.write_text(f'{json.dumps(event)}\n{{"t_s": 2.0, "ki')
    lines = LastByte(path)
    assert [lines.append(event) for _ in range(2)] == [False, True]
    lines.close()
    with path.open("a") as file:
        file.write("{\n")
    assert [found["kind"] for found in read_events(path)] == ["ready", "unreadable", "empty", "ready", "unreadable"]
    assert read_history(read_events(path)).damaged == [2, 5]


def test_event_after_close_is_counted_as_lost(tmp_path):
    log = EventLog(tmp_path / "e")
    log.close()
    log.close()
    log.emit("late", "run", "")
    assert log.lost == 1


def test_plain_values_are_json():
    value = {
        1: np.float32(0.5), "nan": float("nan"), "inf": np.array([np.inf, 1.0]), "set": {3}, "other": object,
        "flag": np.True_,
    }  # fmt: skip
    made = plain(value)
    assert made == {
        "1": 0.5, "nan": None, "inf": [None, 1.0], "set": [3], "other": "<class 'object'>", "flag": True,
    }  # fmt: skip
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_writer_that_goes_on_does_not_complete_the_half_line_of_another_time(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b", "te')
    with EventLog(path) as log:
        log.emit("c", "x", "")
    assert [event["kind"] for event in read_events(path)] == ["a", "unreadable", "c"]


def test_time_of_a_run_that_goes_on_does_so_too(tmp_path):
    clock = FakeClock(1000.0)
    with EventLog(tmp_path / "e", clock, clock.now() - 40.0) as log:
        clock.advance(2.0)
        log.emit("ready", "learner", "")
    assert read_events(tmp_path / "e")[0]["t_s"] == 42.0


def test_half_characters_of_a_file_name_in_another_encoding_cost_no_event(tmp_path):
    path = tmp_path / "e"
    with EventLog(path) as log:
        log.emit("fault", "x", "caf\udce9", error="\udce9", deep=[{"\udce9": ["\ud800"]}], kind_of=OSError("\udce9"))
        assert log.lost == 0
    (event,) = read_events(path)
    assert (event["text"], event["error"], event["kind_of"]) == ("caf\\udce9", "\\udce9", "\\udce9")
    assert event["deep"] == [{"\\udce9": ["\\ud800"]}]
    json.dumps(event, ensure_ascii=False).encode()


def test_what_can_be_written_stays_as_it_is():
    text = "café ● \N{PILE OF POO} \x85\u2028"
    assert plain({text: text}) == {text: text}
