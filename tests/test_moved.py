"""Names of earlier versions: importable by their old path, with a warning."""

import importlib
import subprocess
import sys

import pytest

from chop.moved import MODULES, NAMES


def first_definition(module):
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return next(n for n, x in public.items() if getattr(x, "__module__", "") == module.__name__)


@pytest.mark.parametrize("old", MODULES)
def test_an_old_module_has_the_names_of_the_new_one(old):
    new = importlib.import_module(MODULES[old])
    public = new.__all__[0] if hasattr(new, "__all__") else first_definition(new)
    with pytest.warns(DeprecationWarning, match=f"'{old}.{public}' has moved"):
        found = getattr(importlib.import_module(old), public)
    assert found is getattr(new, public)


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_the_new_one(old):
    (old_home, old_own), (home, own) = (path.rsplit(".", 1) for path in (old, NAMES[old]))
    with pytest.warns(DeprecationWarning, match=f"'{old}' has moved: import {own} from {home}"):
        found = getattr(importlib.import_module(old_home), old_own)
    assert found is getattr(importlib.import_module(home), own)


def test_a_name_that_never_was_is_an_attribute_error():
    module = importlib.import_module("chop.actions.subject")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_old_paths_cost_nothing_until_they_are_asked_for():
    code = "import sys, chop.search; print([m for m in sys.modules if m.startswith('chop.nas')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_old_paths_are_there_before_any_room_is_imported():
    code = "from chop.actions.subject import Subject, load_subject; from chop.bench import softmax"
    run = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(run, capture_output=True, text=True).stderr == ""


def test_a_star_import_of_an_old_path_binds_the_names_of_the_new_one():
    names = {}
    with pytest.warns(DeprecationWarning, match="has moved"):
        exec("from chop.search.proxies import *", names)
    assert names["zero_cost_score"] is importlib.import_module("chop.nas.proxies").zero_cost_score
