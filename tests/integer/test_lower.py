"""Integer graphs of the built-in models equal the quantized ones."""

import copy
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.captured.module import CapturedModule
from chop.captured.state.python_state import PythonState
from chop.errors import ConfigError, GuardError
from chop.formats import Binary, Integer, QuantSpec
from chop.nn.integer import Decode, Encode, IntegerOperator
from chop.nn.quantized import QuantizedOperator
from tests.integer import graphs

DIGITS = 360


def lowered(model, trained=False, **settings):
    batch = graphs.test_rows(model, DIGITS)
    quantized = graphs.quantized_graph(model, trained=trained)
    integer, info = passes.lower_to_integer_transform_pass(
        quantized, {"batches": [batch], **settings}
    )
    return quantized, integer, info, batch


def logits(mg, batch):
    with torch.no_grad():
        return mg.model(pixel_values=batch["pixel_values"]).logits


TRAINED = pytest.param("cnn", True, marks=pytest.mark.long, id="cnn-trained")


@pytest.mark.parametrize(("model", "trained"), [("mlp", True), ("cnn", False), TRAINED])
def test_every_logit_of_every_digit_is_equal(model, trained):
    quantized, integer, info, batch = lowered(model, trained)
    found = logits(integer, batch)
    assert found.shape == (360, 10) and found.dtype == torch.float32
    assert torch.equal(found, logits(quantized, batch))
    rows = info["operators"]
    assert sum(row["codes"] for row in rows) > 70_000
    assert all(row["different"] == 0 == row["largest"] for row in rows)
    assert all(-(2 ** row["bits"]) / 2 <= row["low"] <= 0 <= row["high"] for row in rows)
    assert all(0 < row["seen"] <= max(-row["low"], row["high"]) for row in rows)
    assert set(info["accuracy"]) == {"float", "quantized", "integer"}
    assert info["accuracy"]["integer"] == info["accuracy"]["quantized"]
    assert not trained or info["accuracy"]["integer"] > 0.9


def test_between_encoder_and_decoder_there_are_only_integers():
    _, integer, _, _ = lowered("cnn")
    kinds = [type(integer.get_module(node)) for node in integer.nodes if node.op == "call_module"]
    assert (kinds[0], kinds[-1]) == (Encode, Decode)
    assert all(issubclass(kind, IntegerOperator) or kind is nn.Flatten for kind in kinds[:-1])
    assert not any(isinstance(module, QuantizedOperator) for module in integer.modules.values())
    assert not list(integer.model.parameters())
    results = [node.meta["mase"].common.results for node in integer.nodes]
    dtypes = [info["data_out_0"].torch_dtype for info in results]
    assert dtypes[1:-3] == [torch.int64] * len(dtypes[1:-3])


def test_a_graph_that_computes_with_no_size_takes_any_batch():
    quantized, integer, _, batch = lowered("mlp")
    few = {"pixel_values": batch["pixel_values"][:7]}
    assert torch.equal(logits(integer, few), logits(quantized, few))
    with pytest.raises(GuardError, match=r"fixed to pixel_values.shape\[2\] == 8 by lower_to_int"):
        integer.model(pixel_values=torch.zeros(7, 1, 4, 8))


def test_it_copies_exports_and_draws(tmp_path):
    _, integer, _, batch = lowered("cnn")
    expected = logits(integer, batch)
    integer.export(tmp_path / "integer")
    read = MaseGraph.from_checkpoint(tmp_path / "integer")
    for twin in (integer.copy(), copy.deepcopy(integer), pickle.loads(pickle.dumps(integer)), read):
        assert torch.equal(logits(twin, batch), expected)
        assert [node.name for node in twin.nodes] == [node.name for node in integer.nodes]
    assert "conv1_to_s8" in integer.draw(tmp_path / "integer.svg").read_text()


def test_the_quantized_graph_stays_as_it_was():
    before = graphs.quantized_graph("mlp").copy()
    quantized, _, _, batch = lowered("mlp")
    assert quantized.diff(before) == []
    assert torch.equal(logits(quantized, batch), logits(before, batch))


def test_the_graph_is_copied_twice_and_its_state_is_walked_by_no_copy(monkeypatch):
    copies, walks = [], []
    copy_module, walk = CapturedModule.__deepcopy__, PythonState._find

    def counted_copy(module, memo):
        copies.append(len(walks))
        made = copy_module(module, memo)
        copies[-1] = len(walks) - copies[-1]
        return made

    quantized, batch = graphs.quantized_graph("mlp"), graphs.test_rows("mlp", 90)
    monkeypatch.setattr(CapturedModule, "__deepcopy__", counted_copy)
    monkeypatch.setattr(PythonState, "_find", lambda state: walks.append(1) or walk(state))
    _, info = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    assert copies == [0, 0]
    model = graphs.workload("mlp", False).model
    right = model(pixel_values=batch["pixel_values"]).logits.argmax(-1) == batch["labels"]
    assert info["accuracy"]["float"] == int(right.sum()) / 90


def share_different(rows, kinds):
    """Of the codes of operators of some kinds; operators that differ by more than a step: 1."""
    found = [row for row in rows if row["kind"] in kinds]
    assert found and all(row["largest"] <= 1 for row in found)
    return sum(row["different"] for row in found) / sum(row["codes"] for row in found)


APPROXIMATE = ("softmax", "layer_norm")


@pytest.mark.parametrize(("bits", "limit"), [("small", 1e-3), ("exact", 1e-5)])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.long
def test_vit_differs_in_softmax_and_norms_alone(bits, limit, trained):
    quantized, integer, info, batch = lowered("vit", trained, internal_bits=bits)
    rows = info["operators"]
    assert {row["kind"] for row in rows} >= {"conv2d", "linear", "add", "gelu", "matmul"}
    assert all(row["different"] == 0 for row in rows if row["kind"] not in APPROXIMATE)
    limit = limit if trained else 3 * limit  # attention that is nearly even has fine formats
    assert all(share_different(rows, [kind]) <= limit for kind in APPROXIMATE)
    found, expected = logits(integer, batch), logits(quantized, batch)
    assert (found.argmax(-1) == expected.argmax(-1)).sum() >= 359
    assert bits == "small" or (found == expected).float().mean() >= 0.99
    with pytest.raises(GuardError, match=r"pixel_values.shape\[0\] == 360 by lower_to_integer"):
        integer.model(pixel_values=batch["pixel_values"][:7])


@pytest.mark.parametrize(
    ("count", "trained"), [(64, False), pytest.param(1000, True, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_bert_with_padding(count, trained):
    quantized = graphs.quantized_graph("bert-tiny", trained=trained)
    batch = graphs.test_rows("bert-tiny", count)
    assert not batch["attention_mask"].all()
    integer, info = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    rows = info["operators"]
    assert all(row["different"] == 0 for row in rows if row["kind"] not in APPROXIMATE)
    assert all(share_different(rows, [kind]) <= 1e-3 for kind in APPROXIMATE)
    assert abs(info["accuracy"]["integer"] - info["accuracy"]["quantized"]) <= max(1 / count, 0.005)
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    with torch.no_grad():
        found, expected = (mg.model(**inputs).logits for mg in (integer, quantized))
        kept = inputs["attention_mask"].bool()
        other = {**inputs, "input_ids": torch.where(kept, inputs["input_ids"], 5)}
        assert torch.equal(integer.model(**other).logits, found)
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() >= 0.98
    assert "attention_mask" in {str(node.target) for node in integer.nodes}
    with pytest.raises(GuardError, match="run the pass again with an example of that shape"):
        integer.model(**{name: x[:, :-1] for name, x in inputs.items()})


@pytest.mark.parametrize("stored", ["pruned", "packed"])
def test_pruned_and_packed_weights_are_those_that_compute(stored):
    mg, batch = graphs.quantized_graph("mlp", trained=True), graphs.test_rows("mlp", 60)
    if stored == "pruned":
        mg, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.6}})
    else:
        mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [batch]})
    assert all(row["different"] == 0 for row in info["operators"])
    assert torch.equal(logits(integer, batch), logits(mg, batch))
    share = (integer.modules["fc1"].weight == 0).float().mean()
    assert (share > 0.4) == (stored == "pruned")


@pytest.mark.parametrize(("model", "count"), [("mlp", DIGITS), ("cnn", 32)])
@pytest.mark.sampled(1)
def test_wide_formats_equal_the_model_in_float64(model, count):
    quantized = graphs.quantized_graph(model, "16.auto").copy()
    batch = graphs.test_rows(model, count)
    quantized.model.double()
    images = {"pixel_values": batch["pixel_values"].double()}
    integer, info = passes.lower_to_integer_transform_pass(quantized, {"batches": [images]})
    assert all(row["different"] == 0 for row in info["operators"])
    assert max(row["seen"] for row in info["operators"]) > 2**24
    with torch.no_grad():
        expected = quantized.model(**images).logits.float()
        assert torch.equal(integer.model(**images).logits, expected)


class Small(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = act
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def small(act=nn.ReLU, **formats):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    mg = MaseGraph(Small(act()).eval(), dummy_in={"x": x})
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    rules = {name: {"config": config} for name, config in formats.items()}
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0], x


FIXED = {"name": "integer", "width": 8, "frac_width": 4}


def test_float_operators_are_refused_or_quantized():
    mg, x = small(nn.Sigmoid, linear=FIXED)
    with pytest.raises(
        ConfigError, match=r"of act \(sigmoid, float\); .*key 'missing' .*'missing': '8.auto'"
    ):
        passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
    settings = {"batches": [{"x": x}], "missing": "8.auto"}
    integer, info = passes.lower_to_integer_transform_pass(mg, settings)
    assert [row["kind"] for row in info["operators"]] == ["linear", "sigmoid", "linear"]
    assert info["accuracy"] == {}
    assert all(row["different"] == 0 for row in info["operators"])
    assert torch.allclose(integer.model(x), mg.model(x), atol=0.1)


def test_a_relu_without_a_format_reads_exact_results():
    mg, x = small(linear=FIXED)
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
    assert [row["kind"] for row in info["operators"]] == ["linear", "relu", "linear"]
    assert all(row["different"] == 0 for row in info["operators"])
    assert torch.equal(integer.model(x), mg.model(x))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"name": "integer", "width": 8, "frac_width": "auto"}, "first.data_in (integer 8.auto)"),
        ({"name": "scale_integer", "width": 8}, "first.data_in (scale_integer(width=8))"),
        ({"name": "minifloat_ieee", "width": 8, "exponent_width": 4}, "last.weight (minifloat_iee"),
    ],
    ids=["unfitted", "dynamic scale", "minifloat"],
)
def test_all_formats_without_an_integer_form_are_named_at_once(config, named):
    mg, x = small(linear=config, relu=FIXED)
    with pytest.raises(ConfigError) as error:
        passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
    assert named in str(error.value)
    assert all(f"{layer}.data_in" in str(error.value) for layer in ("first", "last"))


class Negates(nn.Module):
    """The halves of each row turned: (-b, a) of (a, b)."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.up(x)
        return self.down(torch.cat((-x[..., 4:], x[..., :4]), -1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "data_in",
    [Integer(8, 5), Integer(8, 5, floor=True), Integer(3, 1), Binary(bipolar=True)],
    ids=("8", "floor", "3", "binary"),
)
def test_what_is_negated_is_rounded_as_the_quantized_model_does(data_in):
    """Results beyond both ends of the format are among them, halves too."""
    torch.manual_seed(0)
    model = Negates().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(16).round_().div_(4)
    batch = {"x": (torch.randn(40, 6) * 8).round() / 4}
    mg = MaseGraph(model, dummy_in=batch)
    config = QuantSpec(data_in, Integer(8, 5), Integer(8, 5))
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": config}})
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    with torch.no_grad():
        assert torch.equal(integer.model(**batch), quantized.model(**batch))


class ReturnsMore(torch.nn.Module):
    def __init__(self, more):
        super().__init__()
        self.first, self.more = torch.nn.Linear(4, 4), more
        self.constant = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        ways = {"input": x, "view": x.view(-1, 2, 2), "constant": self.constant * 2}
        return self.first(x), ways[self.more]


@pytest.mark.parametrize("more", ["input", "view", "constant"])
def test_what_leaves_without_a_format_is_refused_with_a_way_out(more):
    x = torch.randn(2, 4)
    mg = MaseGraph(ReturnsMore(more).eval(), dummy_in={"x": x})
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": x}})
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": FIXED}})
    with pytest.raises(ConfigError, match=r"without a format; compute it by .* or remove it from"):
        passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})


def test_inputs_without_a_number_are_reported():
    batch = {"input": torch.rand(8, 4)}
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)).eval(), dummy_in=batch)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": FIXED}})
    given = {"input": batch["input"].masked_fill(torch.eye(8, 4, dtype=torch.bool), torch.nan)}
    with pytest.warns(UserWarning, match="batches: the input 'input' has NaN, .* remove such rows"):
        passes.lower_to_integer_transform_pass(mg, {"batches": [batch, given]})


def test_inputs_behind_a_norm_of_the_host_are_reported():
    batch = {"input": torch.rand(8, 4)}
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model, dummy_in=batch), {"by": "type", "linear": {"config": FIXED}}
    )
    given = {"input": batch["input"] * 255}
    with pytest.warns(UserWarning, match="output of '0', which the host computes, are far outside"):
        passes.lower_to_integer_transform_pass(mg, {"batches": [given]})


@pytest.mark.parametrize(("x", "is_outside"), [(1.0, False), (0.0, False), (255.0, True)])
def test_inputs_outside_of_the_range_of_their_format_are_reported(tmp_path, recwarn, x, is_outside):
    batch = {"x": torch.rand(8, 4)}
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 2)).eval(), dummy_in={"input": batch["x"]})
    config = {"name": "integer", "width": 8, "frac_width": "auto"}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": config}})
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [{"input": batch["x"]}]})
    given = [{"input": (batch["x"] * x).round()}] * 2
    integer, _ = passes.lower_to_integer_transform_pass(mg, {"batches": given})
    settings = {"project_dir": tmp_path, "top_name": "top", "batches": given}
    passes.emit_cocotb_transform_pass(integer, settings)
    texts = [str(each.message) for each in recwarn if "far outside" in str(each.message)]
    assert len(texts) == 2 * is_outside
    assert all("of the input 'input' are far outside" in x and "to 0.99" in x for x in texts)
