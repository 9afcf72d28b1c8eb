"""How many cores there are to plan for, inside and outside a container."""

from __future__ import annotations

import pytest

from headrace.core.cores import usable_cores


@pytest.fixture(autouse=True)
def eight(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


def told(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return usable_cores(folder)


V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu.max": "rubbish\n"}, 8),
        ({"cpu.max": "0 0\n"}, 8),
        (dict(zip(V1, ("-1\n", "100000\n"), strict=True)), 8),
        (dict(zip(V1, ("150000\n", "100000\n"), strict=True)), 2),
        ({V1[0]: "150000\n"}, 8),
    ],
)
def test_a_quota_of_processor_time_counts_as_so_many_cores(tmp_path, files, cores):
    assert told(tmp_path, files) == cores
