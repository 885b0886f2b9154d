"""A pass file is settings and a call of an engine: passes share code through engines alone."""

import ast
from collections import Counter
from pathlib import Path

from chop import passes
from tests.sources import parse_file
from tests.subcases import subcases

HOME = Path(passes.__file__).parent
FILES = [
    path
    for path in sorted(HOME.rglob("*.py"))
    if path.stem not in ("__init__", "base", "documentation", "docstrings")
]
FAMILIES = {"fusions", "report_nodes", "verify_metadata"}
"""Files of several passes, which have no settings and differ in what they call."""


def imports(path: Path) -> set[str]:
    """The modules of `chop.passes` that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if f"{name}.".startswith("chop.passes.")}


@subcases("path", FILES, ids=lambda path: path.stem)
def test_no_pass_imports_another(path):
    helpers = {name for name in imports(path) if name.rpartition(".")[0].endswith(".base")}
    assert imports(path) == helpers
    assert len(FILES) > 30


def test_passes_have_files_of_their_own_or_share_those_of_a_family():
    counts = Counter(run.__module__.rpartition(".")[2] for run in passes.PASSES.values())
    assert {name for name, count in counts.items() if count > 1} == FAMILIES
    assert set(counts) <= {path.stem for path in FILES}
