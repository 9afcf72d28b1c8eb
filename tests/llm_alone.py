"""A language-model run of stand-ins, as a program: ``llm_alone.py COMPONENT RUN``; ``all``: a whole one without end, told line by line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from headrace.llm.launch.alone import begin_alone, warm_started
from headrace.llm.launch.chronicle import Line
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.starting import begin
from headrace.llm.loading import load_rl_config
from llm_stand_ins import TARGETS


def main(component: str, run: Path) -> int:
    if component == "all":
        return whole(run)
    config = load_rl_config([], {"run.steps": 2})
    what = begin_alone(component, config, run, url=None, resume=False)
    with what.place, warm_started(what) as ready:
        return int(launch(replace(ready, targets=TARGETS, preload=()))["exit_code"])


def whole(run: Path) -> int:
    what = begin(load_rl_config([], {"run.steps": 1_000_000, "env.kwargs": {}}), run, "x")
    with what.place:
        told = replace(what, targets=TARGETS, preload=())
        return int(launch(told, tell)["exit_code"])


def tell(line: Line) -> None:
    sys.stdout.write(f"{line.component} {line.text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
