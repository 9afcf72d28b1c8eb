"""Fixtures of tests that start processes."""

from __future__ import annotations

from run_support import runs, warm_server
from vector_servers import common_server, lent_server

__all__ = ["common_server", "lent_server", "runs", "warm_server"]
