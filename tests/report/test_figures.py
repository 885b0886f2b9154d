"""What all figures share: the same bytes each time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERY_PLOT = Path(__file__).with_name("every_plot.py")


def drawn(folder, hash_seed):
    """The figures of a new process: name -> bytes."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run([sys.executable, EVERY_PLOT, folder], env=environment, check=True)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    return [drawn(tmp_path_factory.mktemp("figures"), seed) for seed in ("0", "1")]


def test_a_figure_that_is_drawn_again_has_the_same_bytes(twice):
    first, second = twice
    assert len(first) == 21
    assert [name for name in first if first[name] != second[name]] == []


def test_no_figure_says_when_it_was_drawn(twice):
    for name, content in twice[0].items():
        assert b"date>" not in content and b"CreationDate" not in content, name
