"""The programs in the documents about vector environments run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = [
    "guides/hanging-environments.md", "guides/slow.md", "guides/migrating-vector-environments.md", "reference/vector.md",
]  # fmt: skip


def programs() -> list[object]:
    found = []
    for document in DOCUMENTS:
        text = (DOCS / document).read_text()
        for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            marks = [pytest.mark.table] if "stable_baselines3" in match[1] else []  # seconds; an example does the same
            found.append(pytest.param(match[1], id=f"{Path(document).name}:{line}", marks=marks))
    return found


@pytest.mark.thin(7)
@pytest.mark.parametrize("program", programs())
def test_program_runs(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    path = DOCS / document
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []
