"""Names of earlier versions: importable by their old path, with a warning."""

import importlib
import pickle
from pkgutil import resolve_name

import pytest

from chop.formats import Integer
from chop.moved import MODULES, NAMES
from chop.nn.quantized.running import RunningMaximum
from tests.fresh import printed_by
from tests.subcases import subcases


def first_definition(module):
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return next(n for n, x in public.items() if getattr(x, "__module__", "") == module.__name__)


@subcases("old", MODULES)
def test_an_old_module_has_the_names_of_the_new_one(old):
    new = importlib.import_module(MODULES[old])
    public = new.__all__[0] if hasattr(new, "__all__") else first_definition(new)
    with pytest.warns(DeprecationWarning, match=f"'{old}.{public}' has moved"):
        found = getattr(importlib.import_module(old), public)
    assert found is getattr(new, public)


@subcases("old", NAMES)
def test_an_old_name_is_the_new_one(old):
    home, own = NAMES[old].rsplit(".", 1)
    with pytest.warns(DeprecationWarning, match=f"'{old}' has moved: import {own} from {home}"):
        found = resolve_name(old)
    assert found is resolve_name(NAMES[old])


SHOWN = [
    "chop.actions.rounding.quantize_after_training",
    "chop.actions.search.format_settings.spread_evenly",
    "chop.actions.subject.Subject",
    "chop.actions.subject.SubjectConfig",
    "chop.actions.subject.load_subject",
    "chop.actions.subject.raise_to_graph",
    "chop.actions.sweep.journal.Journal",
    "chop.bench.attention.bench_attention",
    "chop.bench.attention_ways.Case.moved_bytes",
    "chop.bench.compile.bench_compile",
    "chop.bench.dequantize.bench_dequantize",
    "chop.bench.record.spelt_ratio",
    "chop.bench.record.spelt_seconds",
    "chop.bench.softmax.bench_softmax",
    "chop.bench.weight_memory.predicted",
    "chop.search.PrecisionProblem",
    "chop.search.Tried",
    "chop.search.architecture.Architectures",
    "chop.search.proxies.PROXIES",
    "chop.search.sensitivity",
]
"""What README, docs and examples of version 0.1 imported and has moved since."""


@pytest.mark.filterwarnings("ignore:.* has moved:DeprecationWarning")
@subcases("path", SHOWN)
def test_what_pages_of_version_0_1_showed_is_still_there(path):
    assert resolve_name(path) is not None


def test_a_name_that_never_was_is_an_attribute_error():
    module = importlib.import_module("chop.actions.subject")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_old_paths_cost_nothing_until_they_are_asked_for():
    code = "import sys, chop.search; print([m for m in sys.modules if m.startswith('chop.nas')])"
    assert printed_by(code) == "[]\n"


def test_old_paths_are_there_before_any_room_is_imported():
    code = "from chop.actions.subject import Subject, load_subject; from chop.bench import softmax"
    assert printed_by(f"import warnings; warnings.simplefilter('ignore'); {code}") == ""


def test_a_star_import_of_an_old_path_binds_the_names_of_the_new_one():
    names = {}
    with pytest.warns(DeprecationWarning, match="has moved"):
        exec("from chop.search.proxies import *", names)
    assert names["zero_cost_score"] is importlib.import_module("chop.nas.proxies").zero_cost_score


def test_a_running_maximum_pickled_by_version_0_1_loads():
    # Protocol 0 names classes as text: `c` module, class.
    stored = pickle.dumps(RunningMaximum(Integer(8, "auto"), 1.5, Integer(8, 6)), protocol=0)
    old = stored.replace(b"\nRunningMaximum\n", b"\nRunning\n")
    assert old != stored
    with pytest.warns(DeprecationWarning, match="has moved"):
        assert pickle.loads(old) == pickle.loads(stored)
