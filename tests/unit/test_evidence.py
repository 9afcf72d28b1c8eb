"""What is noted about a process, without starting one."""

from __future__ import annotations

import os

from headrace.supervision import evidence
from headrace.supervision.evidence import NativeDump, Sampler, Usage, started_bytes, usage, write_evidence

SIZE = 64 * 2**20
USED = Usage(state="running", cpu_s=31.25, rss_bytes=412_000_000, threads=3, open_files=17)


class Child:
    def __init__(self, *, alive: bool = True) -> None:
        self.alive, self.samples = alive, 0

    def sample(self) -> None:
        self.samples += 1


def test_this_process_is_seen_as_it_is():
    used = usage(os.getpid())
    assert used is not None
    assert (used.state, used.threads >= 1, used.open_files > 2, used.rss_bytes > 1e6) == ("running", True, True, True)


def test_a_process_that_is_gone_uses_nothing_that_is_known():
    assert usage(2**22 + 1) is None  # above the largest number the kernel gives


def test_what_a_process_has_started_counts_and_what_it_shares_does_not():
    before = started_bytes(os.getpid())  # multiprocessing's own
    held = [bytearray(os.urandom(1)) * SIZE]
    readers, writers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # what it has inherited is the parent's; what it takes is its own, and its child's is too
        os.close(readers[1])
        os.close(writers[0])
        grandchild = os.fork()
        held.append(bytearray(os.urandom(1)) * SIZE)
        os.write(writers[1], b"x")
        os.read(readers[0], 1)
        if grandchild:
            os.waitpid(grandchild, 0)
        os._exit(0)
    try:
        os.close(readers[0])
        os.close(writers[1])
        read = 0
        while read < 2:
            read += len(os.read(writers[0], 2))
        assert 2 * SIZE <= started_bytes(os.getpid()) - before < 3 * SIZE
    finally:
        os.close(readers[1])
        os.close(writers[0])
        os.waitpid(child, 0)
    assert started_bytes(2**22 + 1) == 0
    assert len(held[0]) == SIZE


def test_samples_are_taken_of_the_living_and_no_more_often_than_needed(clock):
    living, dead = Child(), Child(alive=False)
    sampler = Sampler([living, dead], clock)
    for advance_s, samples in [(0.0, 1), (1.9, 1), (0.1, 2), (0.0, 2), (60.0, 3)]:
        clock.advance(advance_s)
        sampler.look()
        assert living.samples == samples
    assert dead.samples == 0


def test_page_of_evidence(tmp_path):
    page = tmp_path / "c.0.txt"
    write_evidence(page, "c, incarnation 0, pid 41: exit code 3", USED, ["one", "two"])
    assert page.read_text() == (
        "== c, incarnation 0, pid 41: exit code 3\n"
        "== resources: running, 31.2 s of processor time, 412 MB resident, 3 threads, 17 open files\n"
        "== the last 2 lines it printed\n"
        "one\n"
        "two\n"
    )
    write_evidence(page, "again", None, [])
    assert page.read_text().endswith("== again\n== resources: not known\n== the last 0 lines it printed\n")


def test_a_disk_that_refuses_costs_the_evidence_alone(tmp_path):
    write_evidence(tmp_path / "no" / "folder" / "c.0.txt", "c", USED, [])
    assert list(tmp_path.iterdir()) == []


def test_without_py_spy_there_is_nothing_to_wait_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    dump = NativeDump(os.getpid(), tmp_path / "c.0.txt")
    assert dump.finished()
    dump.close()
    assert not (tmp_path / "c.0.txt").exists()
    assert evidence.NATIVE_S <= 1.0  # a hung collector is to be replaced within two seconds of its deadline
