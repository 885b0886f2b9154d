"""Mixed precision as a search: what is measured is what the passes would build."""

import dataclasses
import gc
import itertools

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, MXInt, QuantSpec
from chop.nn import quantized as q
from chop.nn import weight_cache
from chop.problems.mixed_precision import latency
from chop.problems.mixed_precision.costs import Costs
from chop.problems.mixed_precision.held_out import HeldOutRows
from chop.problems.mixed_precision.layer_sensitivity import gradient_rows
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.search import Constraint, Goal
from chop.train import calibration_batches, evaluate
from chop.train.evaluator import Evaluator
from tests.export.decoders import SIZES, decoder
from tests.passes.conftest import with_metadata
from tests.problems.mixed_precision.test_allocation import tied
from tests.workloads import graph, rows

LAYERS = ["first", "dead", "last"]


def problem(**settings):
    settings = {"ranges": {"width": (2, 4, 8)}, **settings}
    return PrecisionProblem(graph(), *rows(), **settings)


def silent(step, value):
    raise AssertionError("a short trial reports nothing")


def built_by_passes(config, bias=None):
    """The same configuration by the passes that users call."""
    bias = bias or Integer(8, "mse")
    rules = {
        name: {
            "config": QuantSpec(Integer(int(text[0]), "mse"), Integer(int(text[0]), "mse"), bias)
        }
        for name, text in config.items()
    }
    mg, _ = passes.quantize_transform_pass(graph(), {"by": "name", **rules})
    batches = calibration_batches(mg.model, rows()[0])
    return passes.calibrate_transform_pass(mg, {"batches": batches})[0]


@pytest.mark.parametrize("texts", [("2.mse", "8.mse", "4.mse"), ("8.mse", "2.mse", "8.mse")])
@pytest.mark.sampled(1)
def test_a_trial_measures_what_the_passes_build(texts):
    workload = problem()
    config = dict(zip(LAYERS, texts, strict=True))
    workload.measure(workload.uniform("2.mse"), silent)  # what ran before must not matter
    found = workload.measure(config, silent)
    mg = built_by_passes(config)
    assert found["accuracy"] == evaluate(mg.model, rows()[1])
    own = workload.graph(config)
    x = rows()[1].columns["x"][:50]
    with torch.no_grad():
        assert torch.equal(own.model(x), mg.model(x))
        again, _ = passes.quantize_transform_pass(graph(), workload.pass_args(config))
        assert torch.equal(again.model(x), mg.model(x))
    counted = passes.calculate_avg_bits_mg_analysis_pass(own)[1]
    assert found["bits"] == pytest.approx(counted["w_avg_bit"])
    assert found["bytes"] == pytest.approx(counted["weight_bytes"])
    assert workload.space.cost(config) == pytest.approx(found["bits"])


def test_costs_by_hand():
    workload = problem()
    found = workload.measure({"first": "2.mse", "dead": "8.mse", "last": "4.mse"}, silent)
    weights = {"first": (16 * 24, 2), "dead": (24 * 24, 8), "last": (24 * 5, 4)}
    bits = sum(n * width for n, width in weights.values()) + 8 * (24 + 24 + 5)
    numel = sum(n for n, _ in weights.values()) + 53
    assert found["bits"] == pytest.approx(bits / numel) and found["bytes"] == bits / 8
    assert found["activation_bits"] == pytest.approx((16 * 2 + 24 * 8 + 24 * 4) / 64)
    assert found["bit_operations"] == sum(n * width**2 for n, width in weights.values())


def test_layers_that_compute_zero_cost_nothing_in_few_bits():
    workload = problem()
    wide = workload.measure({"first": "8.mse", "dead": "8.mse", "last": "8.mse"}, silent)
    narrow = workload.measure({"first": "8.mse", "dead": "2.mse", "last": "8.mse"}, silent)
    assert narrow["loss"] == pytest.approx(wide["loss"], rel=1e-3) and narrow["bits"] < wide["bits"]
    worst = workload.measure(workload.uniform("2.mse"), silent)
    assert worst["kl"] > 10 * wide["kl"] and worst["accuracy"] < wide["accuracy"]


def test_a_weight_is_rounded_once_in_each_format(monkeypatch):
    workload = problem()
    made = []
    whole = q.QuantizedOperator._round

    def count(self, operand, x, mask):
        made.append(operand)
        return whole(self, operand, x, mask)

    monkeypatch.setattr(q.QuantizedOperator, "_round", count)
    first = {}
    for _, config in itertools.product(range(3), workload.space.grid()):
        found = workload.measure(config, silent)
        assert first.setdefault(workload.space.key(config), found) == found
    assert made.count("weight") == 3 * 3 and made.count("bias") == 3
    layer = workload.layers.mg.model.first
    assert layer in weight_cache._shelves
    del workload
    gc.collect()
    assert layer not in weight_cache._shelves


def test_the_caller_s_graph_stays_as_it_was():
    mg = graph()
    before = {name: x.clone() for name, x in mg.model.state_dict().items()}
    workload = PrecisionProblem(mg, *rows(), formats=["mxint"])
    workload.measure(workload.uniform("mxint:width=4"), silent)
    assert not any(isinstance(m, q.QuantizedOperator) for m in mg.model.modules())
    assert all(torch.equal(x, before[name]) for name, x in mg.model.state_dict().items())
    built = workload.graph(workload.uniform("mxint"))
    workload.measure(workload.uniform("mxint:width=4"), silent)
    assert built.model.first.spec.weight == MXInt()


def test_operands_can_be_chosen_one_by_one():
    workload = problem(per="operand", operands=("data_in", "weight", "bias"))
    assert len(workload.space.choices) == 9 and "first.bias" in workload.space.by_name
    config = workload.uniform("8.mse") | {"first.weight": "2.mse", "last.data_in": "4.mse"}
    mg = workload.graph(config)
    assert mg.model.first.spec.weight.width == 2 and mg.model.first.spec.data_in.width == 8
    assert mg.model.last.spec.data_in.width == 4 and mg.model.dead.spec.bias.width == 8
    assert workload.space.cost(config) == pytest.approx(workload.measure(config, silent)["bits"])
    weights_only = problem(operands=("weight",), bias="float")
    mg = weights_only.graph(weights_only.uniform("4.mse"))
    assert mg.model.first.spec == QuantSpec(weight=mg.model.first.spec.weight)
    config = weights_only.uniform("4.mse")
    assert weights_only.space.cost(config) == pytest.approx(
        weights_only.measure(config, silent)["bits"]
    )


def test_functions_can_be_quantized_too():
    workload = problem(operators=("linear", "matmul"))
    assert list(workload.space.by_name) == ["first", "dead", "matmul", "last"]
    config = workload.uniform("8.mse") | {"matmul": "2.mse"}
    rough, fine = (workload.measure(c, silent) for c in (config, workload.uniform("8.mse")))
    assert rough["kl"] > fine["kl"] and rough["bits"] == fine["bits"]
    own = workload.graph(config)
    mg, _ = passes.quantize_transform_pass(graph(), workload.pass_args(config))
    x = rows()[1].columns["x"][:50]
    with torch.no_grad():
        assert torch.equal(own.model(x), mg.model(x))


def test_a_shared_weight_has_one_format_and_counts_once():
    workload = PrecisionProblem(tied(), *rows(), ranges={"width": (4, 8)})
    config = {"first": "4.mse", "dead": "8.mse", "last": "4.mse"}
    chosen = workload.formats(config)
    assert chosen["last"]["weight"] is chosen["dead"]["weight"] != chosen["last"]["data_in"]
    assert workload.only("dead", "4.mse")["last"].keys() == {"weight"}
    found = workload.measure(config, silent)
    assert found["bytes"] * 8 == 4 * 16 * 24 + 8 * 24 * 24 + 8 * 48
    assert Costs(workload.layers).numel == 16 * 24 + 24 * 24 + 48


@pytest.mark.parametrize("score", ["loss", "kl"])
def test_long_trials_report_and_can_be_stopped(score):
    workload = problem(batch_size=20, goal=score)
    seen = []
    found = workload.measure(
        workload.uniform("8.mse"), lambda step, value: seen.append((step, value))
    )
    assert [step for step, _ in seen] == [4, 8, 12, 16]
    assert seen[-1][1] == pytest.approx(found[score], rel=0.5)

    def stop(step, value):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workload.measure(workload.uniform("2.mse"), stop)
    assert workload.measure(workload.uniform("8.mse"), lambda step, value: None) == found


def test_a_problem_without_a_score_to_report_reports_nothing():
    workload = problem(batch_size=20, goal=None)
    found = workload.measure(workload.uniform("4.mse"), silent)
    assert found == problem(batch_size=20).measure(workload.uniform("4.mse"), lambda step, value: 0)
    with pytest.raises(ConfigError, match="goal: got 'losss'.*did you mean 'loss'"):
        problem(goal="losss")


def test_custom_metrics_and_goals():
    workload = problem(
        custom_metrics={"hardware_cost": lambda mg: 10 * mg.model.first.spec.weight.width}
    )
    assert workload.measure(workload.uniform("4.mse"), silent)["hardware_cost"] == 40
    workload.check_goals(
        [Goal("accuracy"), Constraint("bits", 4), Goal("hardware_cost", "minimize")]
    )
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        workload.check_goals([Goal("acuracy")])
    with pytest.raises(ConfigError, match="custom_metrics=.'latency_ms': function"):
        workload.check_goals([Goal("latency_ms", "minimize")])


def test_latency_is_that_of_the_packed_graph(monkeypatch):
    seen = []
    packing = latency.pack_transform_pass

    def pack(mg, pass_args):
        seen.append(packing(mg, pass_args))
        return seen[-1]

    monkeypatch.setattr(latency, "pack_transform_pass", pack)
    measure = latency.packed_latency({"x": rows()[1].columns["x"][:32]}, repeats=3)
    workload = problem(custom_metrics={"latency_ms": measure})
    found = workload.measure(workload.uniform("4.mse"), silent)
    assert 0 < found["latency_ms"] < 10_000 and seen[0][1]["packed"] == 3
    workload.check_goals([Goal("accuracy"), Goal("latency_ms", "minimize")])
    with pytest.raises(ConfigError, match="repeats: expected at least 1"):
        latency.packed_latency({}, repeats=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operators": ("linaer",)}, "did you mean 'linear'"),
        ({"operators": ("conv2d",)}, "no layer with one of conv2d; it has: .*linear"),
        ({"operands": ("wieght",)}, "did you mean 'weight'"),
        ({"operands": ("data_out",)}, "unknown 'data_out'"),
        ({"per": "layers"}, "did you mean 'layer'"),
        ({"goal": "bits"}, "goal: got 'bits'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        problem(**settings)
    with pytest.raises(ConfigError, match="unknown option '5.mse'"):
        problem().uniform("5.mse")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("per", ["layer", "operand"])
def test_joined_layers_share_a_choice(per):
    names = ["input_ids"]
    mg = with_metadata(MaseGraph(decoder("Llama", tied=True), hf_input_names=names))
    ids = torch.randint(0, SIZES["vocab_size"], (8, 9), generator=torch.Generator().manual_seed(1))
    table = {"input_ids": ids, "labels": ids}
    settings = {"formats": ["4.auto", "8.auto"], "operands": ["weight"], "per": per}
    given = {"task": "causal-lm", "bias": "float", **settings}
    apart = PrecisionProblem(mg, table, table, **given)
    joined = PrecisionProblem(mg, table, table, joined=True, **given)
    end = ".weight" if per == "operand" else ""
    attention, mlp = "model.layers.0.self_attn.", "model.layers.0.mlp."
    shared = {attention + "k_proj", attention + "v_proj", mlp + "up_proj"}
    assert [*joined.targets] == [x for x in apart.targets if x.removesuffix(end) not in shared]
    mix = {**joined.uniform("4.auto"), f"{attention}q_proj{end}": "8.auto"}
    twin = {**apart.uniform("4.auto"), **{f"{attention}{x}_proj{end}": "8.auto" for x in "qkv"}}
    assert joined.formats(mix) == apart.formats(twin)
    assert joined.measure(mix, silent) == apart.measure(twin, silent)
    spaces = [(joined.space, mix), (apart.space, twin)]
    costs = [sum(space.by_name[n].cost[x] for n, x in c.items()) for space, c in spaces]
    assert costs[0] == pytest.approx(costs[1]) == pytest.approx(joined.compute_costs(mix)["bits"])


def language_problem(lengths=(9,) * 8, **settings):
    mg = with_metadata(MaseGraph(decoder("Llama", tied=True), hf_input_names=["input_ids"]))
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, SIZES["vocab_size"], (n,), generator=draw) for n in lengths]
    columns = {"input_ids": texts, "labels": texts}
    given = {"task": "causal-lm", "bias": "float", "formats": ["4.auto", "8.auto"], **settings}
    return PrecisionProblem(mg, columns, columns, operands=["weight"], **given), columns


@pytest.mark.long
def test_a_search_of_weights_samples_no_inputs(monkeypatch):
    monkeypatch.setattr("chop.problems.mixed_precision.layers.sample_operands", None)
    found, _ = language_problem()
    assert found.measure(found.uniform("4.auto"), silent)["kl"] > 0
    with pytest.raises(TypeError):
        problem().measure(problem().uniform("4.mse"), silent)


@pytest.mark.long
def test_gradients_of_texts_need_little_memory(monkeypatch):
    vocabulary = SIZES["vocab_size"]
    monkeypatch.setattr("chop.train.rows.LOGIT_BYTES", 4 * vocabulary * 9 * 2)
    found, columns = language_problem()
    assert [len(labels) for _, labels in gradient_rows(found, columns).batches] == [2, 2, 2, 2]


@pytest.mark.long
def test_intervals_are_over_whole_texts():
    found, columns = language_problem(lengths=(5, 9, 9))
    test = HeldOutRows(found, Evaluator(found.model(None), columns, task="causal-lm"), "kl")
    score = test.score(found.uniform("4.auto"))
    sizes = test.held_out.sizes
    assert sorted(sizes) == [4, 8, 8] and len(score.divergences) == 20
    assert score.kl_interval[0] < score.kl < score.kl_interval[1]
    # All tokens of a text are alike, so draws of three texts reach means of 0 and 1.
    alike = torch.tensor([0.0, 1.0, 1.0]).double().repeat_interleave(torch.tensor(sizes))
    better = dataclasses.replace(score, divergences=torch.zeros(20, dtype=torch.float64))
    verdict, sentence = test.compare(better, dataclasses.replace(score, divergences=alike), "A")
    assert "kl +0 to +1 (within error)" in sentence
    assert verdict == ", not better than A in kl beyond the error"
