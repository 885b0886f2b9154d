"""The architecture page says what the code and the contract say."""

import ast
import re
import runpy
from graphlib import TopologicalSorter
from pathlib import Path

from tests.sources import parse_file
from tests.subcases import subcases

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/chop"
PAGE = (ROOT / "docs/architecture.md").read_text()
WALKS = (PAGE, (ROOT / "docs/how-to/add-a-sampler.md").read_text())
NAMED = sorted(
    set(
        re.findall(
            r"`(?!tests/|benchmarks/)(?:src/chop/)?([\w/]+\.py)(?::([\w.]+))?`", "".join(WALKS)
        )
    )
)
drawing = runpy.run_path(str(ROOT / "docs/draw_architecture.py"))


def names(body, prefix=""):
    """The functions, classes and methods that are defined in a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from names(node.body, f"{prefix}{node.name}.")


@subcases("path, name", NAMED, ids=str)
def test_what_the_page_names_exists(path, name):
    known = set(names(parse_file(SOURCE / path).body))
    assert not name or name in known


def test_every_walk_names_its_files():
    walks = PAGE.split("\n## ")[1:]
    assert len(walks) == 5
    assert all(len(set(re.findall(r"`[\w/]+\.py", walk))) >= 4 for walk in walks)


def test_the_picture_is_that_of_the_contract():
    committed = drawing["PICTURE"].read_text()
    assert committed == drawing["picture"](), "run python docs/draw_architecture.py"
    assert all(f">{room}</text>" in committed for room in ("capture", "search", "passes", "cli"))


def test_the_table_of_rooms_is_that_of_the_contract():
    assert drawing["page"]() == PAGE, "run python docs/draw_architecture.py"
    assert "| 1 | `chop.cli` | The `chop` command" in PAGE


def test_every_room_has_a_layer():
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    layers = drawing["contracts"]()["chop"]
    found -= {"__init__", "__main__", "__pycache__", "py", "site"}  # `make docs` writes site
    assert found == {room for layer in layers for room in layer}


def test_module_docstrings_open_with_the_fields_keyword():
    opens = re.compile(r'"""(What|How|Where|Which)\b', re.I)
    assert [str(path) for path in SOURCE.rglob("*.py") if opens.match(path.read_text())] == []


def test_files_form_no_circles():
    """Imports inside functions count, and those for type checkers."""
    paths = {get_module(path): path for path in SOURCE.rglob("*.py")}
    graph = {name: set(imported(path, paths)) - {name} for name, path in paths.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def get_module(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path, known):
    """The modules of `chop` that a file imports, wherever the import stands."""
    nodes = [parse_file(path)]
    for node in nodes:  # grows
        nodes += ast.iter_child_nodes(node)
        names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        for each in names:
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            full = f"{home}{each.name}"
            name = full if full in known else full.rpartition(".")[0]
            if name in known:
                yield name
