"""The README's Python runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*?\)\s+# (.*)", "".join(blocks))
    assert len(promised) == 2
    assert all(line in printed for line in promised)
    assert (tmp_path / "bert.svg").exists()
    assert names["again"].diff(names["small"]) == []


def test_every_file_that_the_readme_names_exists():
    named = re.findall(
        r"\]\(((?:docs|benchmarks|LICENSE)[^)]*)\)|`(examples/[^`]+)`", README.read_text()
    )
    paths = [path for pair in named for path in pair if path]
    assert len(paths) >= 5
    assert [path for path in paths if not (README.parent / path).exists()] == []
