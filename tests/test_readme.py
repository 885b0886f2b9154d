"""The README's Python runs as it stands."""

import re
from pathlib import Path

from chop import passes
from chop.moved import MODULES, NAMES
from chop.not_built import NOT_BUILT

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"
README = Path(__file__).resolve().parents[1] / "README.md"


def labels(svg):
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    assert len(found) > 100
    return [re.sub(r"\d+", "N", text) for text in found]  # widths follow the trained weights


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 7
    names = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*?\)\s+# (.*)", "".join(blocks))
    assert len(promised) == 3
    assert all(line in printed for line in promised)
    shown = (README.parent / "docs/images/bert.svg").read_text()
    assert labels(shown) == labels((tmp_path / "bert.svg").read_text())
    assert names["again"].diff(names["small"]) == []


def anchors(page):
    """What links into a page of Markdown may name: its headings."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_file_that_the_readme_names_exists():
    linked = r"\]\(((?:docs|benchmarks|LICENSE|CONTRIBUTING)[^)]*)\)"
    named = re.findall(rf"{linked}|`(examples/[^`]+)`", README.read_text())
    paths = [path for pair in named for path in pair if path]
    assert len(paths) >= 5
    files = [(README.parent / path.partition("#")[0], path.partition("#")[2]) for path in paths]
    assert [str(file) for file, _ in files if not file.exists()] == []
    assert [anchor for file, anchor in files if anchor and anchor not in anchors(file)] == []


def test_the_changelog_lists_every_name_that_moved():
    listed = re.findall(r"^\| `(chop\..*?)` \| `(chop\..*?)` \|", CHANGELOG.read_text(), re.M)
    assert dict(listed) == {**MODULES, **NAMES}


def test_what_is_called_not_built_is_not_and_the_rest_is():
    text = (README.parent / "docs/mase.md").read_text()
    table = text[text.index("is **not built**") : text.index("What **differs on purpose**")]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][2:]
    names = [re.findall(r"`(\w+?)`", cell) for row in rows for cell in row]
    missing, meanwhile = ({n for cell in names[side::2] for n in cell} for side in (0, 1))
    assert {name for name in missing if name.endswith("_pass")} <= NOT_BUILT.keys()
    assert {
        "train",
        "test",
        "transform",
        "mxint_hardware",
    } <= missing & NOT_BUILT.keys()
    assert meanwhile and not meanwhile & NOT_BUILT.keys()
    assert all(hasattr(passes, name) for name in meanwhile if name.endswith("_pass"))
