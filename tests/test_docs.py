"""Pages on how to do things, circuits and processes: their Python runs and prints what they say."""

import re
import subprocess
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
SIMULATORS = pytest.mark.tools("verilator", "iverilog", "yosys")
NEEDS = {"add-a-circuit": SIMULATORS, "hardware": SIMULATORS}
HOW_TO = [
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    ROOT / "docs/hardware.md",
    ROOT / "docs/distributed.md",
    ROOT / "docs/language_models.md",
]
PAGES = [pytest.param(page, marks=NEEDS.get(page.stem, ()), id=page.stem) for page in HOW_TO]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, tmp_path):
    """In a process of its own: formats, passes and operators are registered in it."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text(f"{PREAMBLE.format(folder=str(tmp_path))}{code}")
    done = programs.run(program)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)  # (.*)", code)
    assert done.stdout.splitlines() == promised and len(promised) >= 2
    for command in re.findall(r"^(?:iverilog|vvp) .*", page.read_text(), re.M):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path / "project", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not command.startswith("vvp") or done.stdout.splitlines()[-1] == "PASS"


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text()
    named = set(re.findall(r"`((?:src|tests|benchmarks)/[\w/]+(?:\.py)?)`", text))
    folder = page.parent.relative_to(ROOT)
    named |= {f"{folder}/{link}" for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)}
    assert len(named) >= 3
    assert {path for path in named if not (ROOT / path).exists()} <= TO_WRITE


def test_the_page_on_trust_has_the_bounds_of_the_readers():
    from chop import documents
    from chop.hardware.testbench import SLOWEST
    from chop.ir.storage import graph_codec, module_codec, tensor_store
    from chop.models.config_file import COUNTS

    text = (ROOT / "docs/trust.md").read_text()
    layers, labels, *_ = COUNTS.values()
    for bound in (
        f"at most {documents.DEEPEST} levels, {documents.MOST_BYTES >> 30} GiB",
        f"integers of at most {len(str(documents.LARGEST)) - 1} digits",
        f"unpack to {tensor_store.INLINE_FREE >> 20} MiB, and {tensor_store.INLINE_RATIO} times",
        f"metadata to {graph_codec.METADATA_FREE >> 20} MiB and {graph_codec.METADATA_RATIO} times",
        f"nested {module_codec.MAX_DEPTH} deep",
        f"at most {layers:,} layers and {labels:,} labels",
        f"after {SLOWEST} intervals",
    ):
        assert bound in " ".join(text.split()), bound
    files = re.findall(r"`(src/[\w/.]+)`|\]\(([\w./]+)\)", text)
    assert len(files) >= 3
    assert all((ROOT / (own or f"docs/{link}")).exists() for own, link in files)
