"""Optuna's private API: where it is used, and that it is what `chop` knows."""

import ast
import copy
import inspect
import json
import tomllib
from pathlib import Path

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, create_trial
from packaging.specifiers import SpecifierSet
from torch import nn

import chop
from chop.search import Choice, Goal, SearchSpace, optuna_study
from chop.search.ledger import Row
from chop.search.optuna_study import OPTUNA_VERSIONS, InMemoryStudy, trial_params
from tests.sources import parse_file

SOURCE = Path(chop.__file__).parent
PRIVATE = {
    name
    for kind in (optuna.Study, Trial, FrozenTrial, InMemoryStorage, BaseSampler)
    for name in (*vars(kind), *vars(optuna.create_study()), *vars(create_trial(value=1.0)))
    if name.startswith("_") and not name.startswith("__")
}
STORAGE = {
    "create_new_trial": ["study_id", "template_trial"],
    "get_study_id_from_name": ["study_name"],
    "get_trial": ["trial_id"],
    "get_trial_id_from_study_id_trial_number": ["study_id", "trial_number"],
    "set_trial_intermediate_value": ["trial_id", "step", "intermediate_value"],
    "set_trial_state_values": ["trial_id", "state", "values"],
    "set_trial_system_attr": ["trial_id", "key", "value"],
    "set_trial_user_attr": ["trial_id", "key", "value"],
}


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def private_uses(path):
    """Optuna's private modules and attributes, and storage methods, that a file uses."""
    tree = parse_file(path)
    nodes = list(ast.walk(tree))
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    optunas = [module.split(".") for module in modules if module.split(".")[0] == "optuna"]
    found = {part for parts in optunas for part in parts if part.startswith("_")}
    if not optunas:
        return found
    attributes = [n for n in nodes if isinstance(n, ast.Attribute)]
    others = (n for n in attributes if not (isinstance(n.value, ast.Name) and n.value.id == "self"))
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return (
        found
        | {n.attr for n in others if n.attr in PRIVATE | {*STORAGE}}
        | (texts & {"fixed_params"})
    )


def test_the_versions_are_those_that_are_required():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    assert f"optuna{OPTUNA_VERSIONS}" in project["dependencies"]
    assert optuna.__version__ in SpecifierSet(OPTUNA_VERSIONS)


@pytest.mark.parametrize("name", STORAGE)
def test_a_storage_has_the_method(name):
    assert parameters(getattr(InMemoryStorage, name)) == STORAGE[name]


def test_a_study_has_its_trials_cached():
    assert parameters(optuna.Study._get_trials) == ["deepcopy", "states", "use_cache"]
    study = optuna.create_study()
    study.enqueue_trial({"x": 0.5})
    (waiting,) = study._get_trials(deepcopy=False, use_cache=True)
    assert waiting.params == {} and trial_params(waiting) == {"x": 0.5}
    assert study._get_trials(deepcopy=False, use_cache=True)[0] is waiting


def test_a_trial_has_the_fields():
    assert set(vars(create_trial(value=1.0))) == {
        "_number",
        "state",
        "_values",
        "_datetime_start",
        "datetime_complete",
        "_params",
        "_distributions",
        "_user_attrs",
        "_system_attrs",
        "intermediate_values",
        "_trial_id",
    }


def test_copies_of_a_trial_share_its_distributions_alone():
    space = SearchSpace((Choice("x", {"1": 1, "2": 2}),))
    study = InMemoryStudy("s", space, (Goal("y"),), "text", optuna.pruners.NopPruner())
    document = '{"config": {"x": "2"}, "state": "COMPLETE", "told": [3.0], "values": {"y": 3.0}}'
    study.follow([Row(0, "key", "measured", "me", 1, 0, document)])
    (trial,) = study.storage.get_all_trials(0, deepcopy=False)
    copied = copy.deepcopy(trial)
    assert copied == trial and copied.distributions is trial.distributions
    assert copied.params == {"x": "2"} and copied.params is not trial.params
    assert copied.user_attrs == {"outcome": "measured", "values": {"y": 3.0}}
    assert copied.user_attrs is not trial.user_attrs


@pytest.fixture(params=[True, False], ids=["Optuna 5", "Optuna 4"])
def named(request, monkeypatch):
    """Whether constraints are kept by name, as in Optuna 5; Optuna 4 has them as a list."""
    if request.param and not optuna_study.HAS_NAMED_CONSTRAINTS:
        pytest.skip("this Optuna has no constraints by name")
    monkeypatch.setattr(optuna_study, "HAS_NAMED_CONSTRAINTS", request.param)
    return request.param


def test_rows_have_constraints_by_name_and_samplers_what_they_read(named):
    space = SearchSpace((Choice("x", {"1": 1, "2": 2}),))
    study, other = (
        InMemoryStudy("s", space, (Goal("y"),), "text", optuna.pruners.NopPruner())
        for _ in range(2)
    )
    trial = study.ask({"x": "2"})
    excess = {"bits at most": 0.5, "ms at most": -1.0}
    study.constrain(trial, excess)
    frozen = study.study.tell(trial, 3.0)
    assert optuna_study.get_excess(frozen) == excess
    document = optuna_study.build_document(frozen, {"x": "2"})
    kept = {name for name in document["attrs"] if name.startswith("constraints")}
    assert kept == {"constraints:bits at most", "constraints:ms at most"}
    other.follow([Row(0, "key", "measured", "me", 1, 0, json.dumps(document))])
    (followed,) = other.study.get_trials(deepcopy=False)
    assert optuna_study.get_excess(followed) == excess
    listed = followed.system_attrs.get("constraints")
    assert listed == (None if named else [0.5, -1.0])
    assert ("constraints_func" in optuna_study.constraint_settings()) is not named


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution:UserWarning")
@pytest.mark.parametrize("choices", [[nn.Linear, nn.Conv2d], [len, nn.ReLU, max], [nn.ReLU]])
def test_classes_as_choices_outlive_the_start_of_tpe_without_constant_liar(choices):
    """Optuna 5 writes what TPE chooses as JSON, from trial 11 on, unless it is told not to."""
    sampler = optuna.samplers.TPESampler(seed=0, constant_liar=False)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda t: choices.index(t.suggest_categorical("a", choices)), n_trials=13)
    assert len(study.trials) == 13 and study.best_params["a"] in choices


def test_no_other_file_uses_private_api():
    uses = {path: private_uses(path) for path in SOURCE.rglob("*.py")}
    found = {str(path.relative_to(SOURCE)): names for path, names in uses.items() if names}
    assert found.pop("private/optuna_api.py") == {"_get_trials"}
    assert found == {"search/optuna_study.py": {*STORAGE, "fixed_params"}}
