"""`docs/trust.md` lists each reader with its bound, and each variable that the code reads."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from chop.base.files import reading
from chop.base.plugins import GROUPS
from chop.export.foreign.readers import READERS
from tests.sources import parse_file

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "src/chop", ROOT / "docs/trust.md"
PACKAGES = ROOT / "docs/how-to/a-package-of-your-own.md"
LIBRARIES = {
    *("from_pretrained", "load_dataset_builder", "load_from_disk", "ParquetFile", "ZipFile"),
    *("safe_open", "load_file", "memmap", "mmap", "torch.load", "safe_load", "onnx.load"),
    *("InferenceSession", "TaskManager", "fetch_openml", "hf_hub_download", "snapshot_download"),
    *("try_to_load_from_cache", "create_engine", "CDLL"),
}
"""Calls of libraries that open files."""
UNSAFE = {
    *("pickle.load", "pickle.loads", "joblib.load", "dill.load", "np.load", "numpy.load"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "urlopen", "read_pickle"),
}
"""Calls that run what a file says, or fetch what it names."""
CHECKED = {
    ("captured/guards/shape_guards.py", "eval"): "a tree that has arithmetic alone",
    ("captured/state/finder.py", "eval"): "reading of what a program's own model reads",
    ("captured/state/places.py", "eval"): "comparisons of what a program's own model reads",
    ("captured/original.py", "pickle.loads"): "a part of a pickle that a program unpickles",
    ("distributed/planning/own_process.py", "pickle.loads"): "an error that this process pickled",
    ("testing/formats.py", "pickle.loads"): "a pickle that the check made itself",
}


IMPORTING = {
    *("import_module", "__import__", "exec_module", "run_path", "run_module"),
    *("entry_points", "spec_from_file_location"),
}
"""Last names of calls that run a module by its name, or look for one."""
OWN = "modules of this package"
NAMED = "code that the command line names, or a file that is trusted"
INSTALLED = "entry points of installed packages, which are code"
IMPORTERS = {
    "actions/doctor.py": INSTALLED,
    "actions/search/job.py": OWN,
    "bench/subprocess.py": OWN,
    "captured/nodes/targets.py": "modules of the closed list in ir/storage/allowed.py",
    "cli/command.py": OWN,
    "cli/names.py": INSTALLED,
    "export/onnx/session.py": OWN,
    "ir/storage/allowed.py": "modules of its closed list",
    "mase/quantized_classes.py": OWN,
    "models/own.py": NAMED,
    "nn/quantized/__init__.py": OWN,
    "passes/__init__.py": OWN,
    "paths/aliases.py": OWN,
    "paths/moved.py": OWN,
    "paths/on_import.py": OWN,
    "paths/virtual.py": OWN,
    "base/plugins/files.py": INSTALLED,
    "base/plugins/modules.py": NAMED,
    "base/plugins/registry.py": INSTALLED,
}
"""Modules that run others by name, and whose names these are."""


def dotted(node):
    """`os.environ.get` of a name with attributes; "" before what is none."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@cache
def modules():
    """By module, its nodes that the tests look at."""
    kinds = (ast.Call, ast.Subscript, ast.Constant)
    return {
        file.relative_to(SOURCE).as_posix(): [
            node for node in ast.walk(parse_file(file)) if isinstance(node, kinds)
        ]
        for file in sorted(SOURCE.rglob("*.py"))
    }


@cache
def calls():
    """By module, each call: its name, and its node."""
    return {
        module: [(dotted(node.func), node) for node in nodes if isinstance(node, ast.Call)]
        for module, nodes in modules().items()
    }


def rows(heading):
    """Rows of the table of the page whose first column has this heading."""
    table = PAGE.read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def bound_of(size):
    if size is None:
        return "any"
    return f"{size // 2**30} GiB" if size % 2**30 == 0 else f"{size // 2**20} MiB"


def test_the_page_has_each_kind_of_file_with_its_bound():
    listed = {row[0].strip("`"): row[2] for row in rows("kind")}
    assert listed == {kind: bound_of(size) for kind, size in reading.BOUNDS.items()}


def test_the_page_has_the_libraries_that_open_files():
    listed = {name for row in rows("call") for name in re.findall(r"`([\w.]+)`", row[0])}
    made = {name for found in calls().values() for name, _ in found}
    assert listed == LIBRARIES
    assert made | {name.rpartition(".")[2] for name in made} >= LIBRARIES


def test_nothing_runs_or_fetches_what_a_file_says():
    found = {(module, name) for module, each in calls().items() for name, _ in each}
    assert {call for call in found if call[1] in UNSAFE} == set(CHECKED)
    for module, each in calls().items():
        for name, node in each:
            if name == "torch.load":
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.get("weights_only") == "True", module
            if name.endswith(".from_pretrained"):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.get("trust_remote_code", "False") == "False", module


def test_only_named_modules_run_others_by_name():
    found = {
        module
        for module, each in calls().items()
        if any(name.rpartition(".")[2] in IMPORTING for name, _ in each)
    }
    assert sorted(found) == sorted(IMPORTERS)


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_on_packages_has_each_group_of_entry_points(group):
    assert f"`chop.{group.removeprefix('chop.')}`" in PACKAGES.read_text()


def test_the_page_has_each_tool_whose_folders_are_read():
    text = PAGE.read_text().lower()
    tools = (tool.removeprefix("model").removeprefix("intel/") for tool in READERS)
    assert [tool for tool in tools if tool not in text] == []


def names_of_variables():
    """Variables of the environment that the code reads or names for others."""
    environment = re.compile(r"(os\.)?environ(\.get|\.setdefault)?$|(os\.)?getenv$")
    for nodes in modules().values():
        for node in nodes:
            key = None
            if isinstance(node, ast.Call) and environment.search(dotted(node.func)):
                key = node.args[0] if node.args else None
            elif isinstance(node, ast.Subscript) and environment.search(dotted(node.value)):
                key = node.slice
            if isinstance(key, ast.Constant):
                yield key.value
            if isinstance(node, ast.Constant) and re.fullmatch(r"CHOP_[A-Z_]+", str(node.value)):
                yield node.value


def test_the_page_has_each_variable_that_is_read():
    quiet = {"TQDM_DISABLE", "TQDM_DELAY"}  # set for other libraries
    text = PAGE.read_text()
    assert {name for name in names_of_variables() if f"`{name}`" not in text} <= quiet


@pytest.mark.parametrize(
    "option", ["--include-path", "--trust-code", "--tokenizer", "--weights", "--import"]
)
def test_the_page_has_options_that_name_files(option):
    assert f"`{option}" in PAGE.read_text()
