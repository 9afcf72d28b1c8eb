"""Updates a second of learners, ours beside peers': `headrace bench learners`, with its arguments."""

from __future__ import annotations

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    main(["bench", "learners", *sys.argv[1:]])
