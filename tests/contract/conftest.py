"""Makes the helpers beside the test folders importable, here and in child processes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_support import runs, warm_server
from vector_servers import common_server, lent_server

__all__ = ["common_server", "lent_server", "runs", "warm_server"]
