"""Recipes of precision searches build the model that was measured, by loading and by jobs."""

import tomllib

import pytest
import torch
import transformers

from chop.actions.compress.job import CompressConfig
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.search import precision_rows
from chop.actions.search.job import run_search
from chop.actions.search.precision import JOB, PrecisionConfig
from chop.actions.search.precision_subject import PrecisionSubject
from chop.errors import ConfigError
from chop.formats import format_string
from chop.formats.recipe import Recipe
from chop.nn.quantized import QuantizedOperator
from chop.train.evaluator import Evaluator
from chop.train.rows import Rows
from chop.train.tasks import TASKS
from chop.workloads.workload import Workload, raise_to_graph
from tests.ir.test_hf_folder import decoder

FORMATS = ("group_integer:width=3:group_size=16", "mxint:width=4", "group_integer:width=8")


def texts(model):
    """The formats of weights by path; of other operands none may have one."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantizedOperator):
            spec = module.spec
            assert all(getattr(spec, name).is_identity for name in ("data_in", "bias"))
            if not spec.weight.is_identity:
                found[path] = format_string(spec.number_format("weight"))
    return found


@pytest.fixture(scope="module")
def workload():
    torch.manual_seed(0)
    ids = torch.randint(3, 64, (24, 8))
    rows = Rows({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids)
    own = (decoder("llama"), "llama", "ids", rows, rows, torch.device("cpu"), 1, 1e-3)
    return Workload(*own, validation=rows, task=TASKS["causal-lm"])


@pytest.fixture
def loaded(monkeypatch, workload):
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: workload)


def perplexity(model, workload):
    evaluator = Evaluator(model, workload.test, task=workload.task)
    return evaluator.scores(evaluator.logits())["perplexity"]


@pytest.mark.long
def test_a_recipe_builds_what_was_measured(tmp_path, workload, loaded):
    settings = {
        "out": tmp_path,
        "formats": FORMATS,
        "goals": ("perplexity",),
        "trials": 4,
        "force": True,
    }
    config = PrecisionConfig(**settings, budgets={"bits": 5.5})
    result = run_search(JOB, config)
    best = result.best
    assert best.values["bits"] <= 5.5
    written = tomllib.loads((tmp_path / "precision" / "recipe.toml").read_text())
    compressed = CompressConfig(**{**written, "formats": tuple(written["formats"])})
    assert list(compressed.operands) == ["weight"]
    problem = PrecisionSubject(config, workload).problem
    # A tied table has one choice, and one format.
    names = set(problem.space.by_name)
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    expected = {
        name: format_string(x["weight"]) for name, x in problem.formats(best.config).items()
    }
    mg = raise_to_graph(workload)
    recipe = Recipe.read(written.get("overrides"), written.get("skip"), "")
    number_format = problem.options[written["formats"][0]]
    own = (mg, number_format, written["operators"], workload, 8)
    built = quantize_after_training(*own, recipe=recipe, operands=written["operands"]).model
    assert texts(built) == expected
    path = tmp_path / "float"
    workload.model.save_pretrained(path)
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(path, quantization_config=result.recipe).eval()
    assert texts(model) == expected
    for each in (built, model):
        assert perplexity(each, workload) == pytest.approx(best.values["perplexity"], rel=1e-5)


@pytest.mark.long
def test_each_of_a_front_has_a_recipe(tmp_path, loaded):
    goals = ("perplexity", "bits")
    config = PrecisionConfig(out=tmp_path, formats=FORMATS, goals=goals, trials=5, force=True)
    result = run_search(JOB, config)
    assert len(result.front) > 1 and set(result.recipes) == {x.number for x in result.front}
    for trial in result.front:
        written = tmp_path / "precision" / f"recipe-trial-{trial.number}.toml"
        assert tomllib.loads(written.read_text())["operands"] == ["weight"]


@pytest.mark.long
def test_formats_of_inputs_have_no_recipe(tmp_path, loaded, capsys):
    own = {"operands": ("data_in", "weight"), "budgets": {}, "force": True}
    config = PrecisionConfig(out=tmp_path, formats=FORMATS[1:], trials=2, **own)
    result = run_search(JOB, config)
    assert "build the best model: chop search export" in " ".join(capsys.readouterr().out.split())
    assert not result.recipes and not (tmp_path / "precision" / "recipe.toml").exists()
    with pytest.raises(ConfigError, match="formats for weights only"):
        _ = result.recipe


def test_answers_of_a_vocabulary_bound_the_rows(monkeypatch, workload):
    monkeypatch.setattr(precision_rows, "ANSWER_BYTES", 5 * 4 * 8 * 64)
    _, rows, about = precision_rows.get_rows(
        workload, PrecisionConfig().search_rows, has_training=True
    )
    assert len(rows) == 5 and about.startswith("5 validation rows")


def test_operands_of_a_compression_are_checked():
    with pytest.raises(ConfigError, match="unknown 'weigth'"):
        CompressConfig(operands=("weigth",))
    with pytest.raises(ConfigError, match="expected weight"):
        CompressConfig(formats=("8.auto",), operands=("data_in",), method=("gptq",))
