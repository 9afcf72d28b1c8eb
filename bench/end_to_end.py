"""Trainings to a target, ours beside peers': `headrace bench end-to-end`, with its arguments."""

from __future__ import annotations

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    main(["bench", "end-to-end", *sys.argv[1:]])
