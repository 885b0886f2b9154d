"""The how-to pages: their Python runs as one program and prints what they say."""

import re
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).resolve().parents[1]
TO_WRITE = {
    "src/chop/formats/int_group.py",
    "src/chop/passes/transforms/replace_activations.py",
}
"""Files that a reader of the pages is told to write."""
PREAMBLE = """
import os, warnings
os.chdir({folder!r})
warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
"""
HOW_TO = sorted((ROOT / "docs/how-to").glob("*.md"))


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    """In a process of its own: formats, passes and operators are registered in it."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text(f"{PREAMBLE.format(folder=str(tmp_path))}{code}")
    done = programs.run(program)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)  # (.*)", code)
    assert done.stdout.splitlines() == promised and len(promised) >= 2


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text()
    named = set(re.findall(r"`((?:src|tests|benchmarks)/[\w/]+(?:\.py)?)`", text))
    named |= {f"docs/how-to/{link}" for link in re.findall(r"\]\(([\w./-]+)\)", text)}
    assert len(named) >= 3
    assert {path for path in named if not (ROOT / path).exists()} <= TO_WRITE
