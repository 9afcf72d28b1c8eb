"""What the documents name exists, and no tracked file names the machine it was written on."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path

import click
import pytest

import headrace

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md", "docs/errors.md"]

HOME = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w")
REGISTRY = re.compile(r"\b(?:pypi|pythonhosted|npmjs|anaconda)\.(?:org|com)\b|--(?:extra-)?index-url")


def code_in(markdown: str) -> str:
    """All code of a document, in blocks and between backticks, one piece a line."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL))
    return "\n".join([*blocks, *spans])


def named(program: str, markdown: str) -> set[str]:
    """First words after a program's name, e.g. {"train"} for ``headrace train hockey-demo``."""
    return set(re.findall(rf"^(?:\S*/)?{program} ([a-z][\w-]*)", code_in(markdown), flags=re.MULTILINE))


def python_in(markdown: str) -> list[ast.Module]:
    blocks = re.findall(r"^```python\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)
    return [ast.parse(block) for block in blocks]


def tracked(checkout: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, timeout=30, check=True
    )
    paths = (checkout / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def commands() -> set[str]:
    """Names of the commands there are. Imported here: a broken command line fails these tests only."""
    group = importlib.import_module("headrace.cli.main").main
    return set(group.list_commands(click.Context(group)))


def test_commands_are_found_in_blocks_and_spans() -> None:
    text = (
        "Run `make demo` or `headrace train x --seed 3`.\n```sh\nheadrace doctor RUN\nmake test\n```\nmake not-code\n"
    )
    assert named("make", text) == {"demo", "test"}
    assert named("headrace", text) == {"train", "doctor"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_commands_exist(document: str, checkout: Path) -> None:
    missing = named("headrace", (checkout / document).read_text()) - commands()
    assert not missing, missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_targets_exist(document: str, checkout: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (checkout / "Makefile").read_text(), flags=re.MULTILINE))
    missing = named("make", (checkout / document).read_text()) - targets
    assert not missing, missing


def test_the_readme_names_how_to_start(checkout: Path) -> None:
    assert named("make", (checkout / "README.md").read_text()) >= {"demo", "test"}


def test_a_process_that_a_page_looks_for_is_one(checkout: Path) -> None:
    """Training with workers has many that match; an option takes one number."""
    pages = [checkout / "README.md", *(checkout / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"\$\(pgrep (?!-\w*[on])", page.read_text())] == []


def test_the_preset_of_the_demo_exists(checkout: Path) -> None:
    presets = re.findall(r"headrace train ([a-z][\w-]*)", (checkout / "Makefile").read_text())
    assert presets
    assert [name for name in presets if not (checkout / "configs" / f"{name}.toml").exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str, checkout: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (checkout / document).read_text())
    here = (checkout / document).parent
    missing = [link for link in links if "://" not in link and not (here / link).exists()]
    assert not missing, missing


def test_the_proofs_that_guides_name_exist(checkout: Path) -> None:
    guides = sorted((checkout / "docs" / "guides").glob("*.md"))
    pattern = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
    proofs = {(guide.name, *found) for guide in guides for found in pattern.findall(guide.read_text())}
    missing = sorted(
        f"{guide}: {path} {test}"
        for guide, path, test in proofs
        if not (checkout / path).is_file() or (test and f"def {test}(" not in (checkout / path).read_text())
    )
    assert "llm-hang.md" in {guide for guide, *_ in proofs}
    assert not missing, missing


def test_the_readme_uses_the_public_names(checkout: Path) -> None:
    programs = python_in((checkout / "README.md").read_text())
    used = {
        node.attr
        for program in programs
        for node in ast.walk(program)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "headrace"
    }
    assert used, "the README shows no use of headrace from Python"
    assert used <= set(getattr(headrace, "__all__", ()))


@pytest.mark.parametrize(
    "line", [f"cd /{'work'}/shared", f"at /{'home'}/me", f"see /{'root'}/x", f'"/{"Users"}/a"', "--index-url x"]
)
def test_a_name_of_the_machine_is_found(line: str) -> None:
    assert HOME.search(line) or REGISTRY.search(line)


@pytest.mark.parametrize("line", ["src/work/x", "https://example.test/home/x", "the /tmp folder", "a/root/b"])
def test_other_paths_are_left_alone(line: str) -> None:
    assert not HOME.search(line)


def test_no_tracked_file_names_a_machine(checkout: Path) -> None:
    found = []
    for path in tracked(checkout):
        if path == Path(__file__).resolve():  # the examples above
            continue
        text = path.read_bytes().decode(errors="ignore")
        found += [
            f"{path.relative_to(checkout)}:{number}"
            for number, line in enumerate(text.splitlines(), start=1)
            if HOME.search(line) or REGISTRY.search(line)
        ]
    assert not found, found
