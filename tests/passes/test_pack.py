import dataclasses

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.ir.parameters import stored_parameters
from chop.nn.packed import PackedEmbedding, PackedLinear, PackedOperator
from chop.nn.quantized import QuantLinear
from tests.passes.conftest import with_metadata

MXINT8 = {"config": {"name": "mxint"}}
MXINT4 = {"config": {"name": "mxint", "width": 4}}


class Tied(nn.Module):
    """An embedding table that is the output layer's weight too."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.hidden(self.table(index)))


def quantized(mg, **rules):
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0]


def packed(mg, **settings):
    return passes.pack_transform_pass(mg, {"silent": True, "exact": True, **settings})


def file_bytes(mg, folder, name):
    mg.export(folder / name)
    return (folder / f"{name}.pt").stat().st_size


@pytest.fixture
def tied_graph():
    torch.manual_seed(0)
    index = torch.randint(64, (2, 5))
    return with_metadata(MaseGraph(Tied().eval(), dummy_in={"index": index})), index


def test_a_packed_graph_answers_the_same_and_is_small(bert_graph, bert_inputs, tmp_path):
    mg = quantized(bert_graph, linear=MXINT8, embedding=MXINT4, layer_norm=MXINT8)
    small, info = packed(mg)
    assert torch.equal(small.model(**bert_inputs)["logits"], mg.model(**bert_inputs)["logits"])
    assert info["packed"] == 14 + 3 + 5 and not any(row["why_float"] for row in info["rows"])
    assert isinstance(small.model.bert.pooler.dense, PackedLinear)
    assert isinstance(small.model.bert.embeddings.word_embeddings, PackedEmbedding)
    assert isinstance(mg.model.bert.pooler.dense, QuantLinear), "the caller's graph is as it was"
    assert info["float_bytes"] == sum(p.nbytes for p in mg.model.parameters())
    assert info["bytes"] == sum(row["bytes"] for row in info["rows"]) < info["float_bytes"] / 4
    saved = file_bytes(mg, tmp_path, "float") - file_bytes(small, tmp_path, "packed")
    names = 250 * len(info["rows"])  # two tensors more for a layer, by name
    assert saved == pytest.approx(info["float_bytes"] - info["bytes"], abs=names)


@pytest.mark.parametrize("rule, bits", [(MXINT8, 8.25), (MXINT4, 4.25)])
def test_files_are_within_half_a_percent_of_the_format(rule, bits, tmp_path):
    layers = [nn.Linear(512, 512, bias=False) for _ in range(3)]
    mg = with_metadata(
        MaseGraph(nn.Sequential(*layers).eval(), dummy_in={"input": torch.zeros(1, 512)})
    )
    small, info = packed(quantized(mg, linear=rule))
    assert info["bits_per_weight"] == bits
    measured = 8 * file_bytes(small, tmp_path, "packed") / (3 * 512 * 512)
    assert measured == pytest.approx(bits, rel=0.005)


def test_analyzes_and_pictures_know_packed_layers(bert_graph, tmp_path, capsys):
    mg = quantized(bert_graph, linear=MXINT4)
    small, _ = packed(mg)
    before, after = (passes.calculate_avg_bits_mg_analysis_pass(g)[1] for g in (mg, small))
    assert after["w_avg_bit"] == pytest.approx(before["w_avg_bit"], rel=0.01)
    _, module_bits = passes.module.calculate_avg_bits_module_analysis_pass(small.model)
    assert module_bits["w_avg_bit"] == after["w_avg_bit"]
    assert [s.name for s in stored_parameters(small)] == [s.name for s in stored_parameters(mg)]
    _, summary = passes.summarize_quantization_analysis_pass(small)
    assert {row["operator"] for row in summary["operators"] if row["formats"]} == {"linear"}
    assert summary["layers"] == []
    small.draw(tmp_path / "graph.svg")
    assert "mxint" in (tmp_path / "graph.svg").read_text()
    again, _ = passes.add_common_metadata_analysis_pass(small)
    linear = next(n for n in again.nodes if n.target == "bert.pooler.dense")
    assert linear.meta["mase"].common.args["weight"].shape == (32, 32)
    _, zeros = passes.report_sparsity_analysis_pass(small, {"quiet": True})
    assert "bert.pooler.dense.weight" in [row["parameter"] for row in zeros["weights"]]


def test_unpacking_gives_a_graph_that_trains(bert_graph, bert_inputs):
    mg = quantized(bert_graph, linear=MXINT8)
    small, _ = packed(mg)
    large, info = packed(small, unpack=True)
    assert info["unpacked"] == 14 and info["packed"] == 0 and info["bits_per_weight"] is None
    assert not any(isinstance(m, PackedOperator) for m in large.model.modules())
    assert large.model.state_dict().keys() == mg.model.state_dict().keys()
    assert torch.equal(large.model(**bert_inputs)["logits"], mg.model(**bert_inputs)["logits"])
    large.model.train()(**bert_inputs)["loss"].backward()
    assert large.model.bert.pooler.dense.weight.grad is not None
    with pytest.raises(ConfigError, match="PackedLinear cannot be trained"):
        small.model.train()(**bert_inputs)
    with pytest.raises(ConfigError, match="nothing to unpack"):
        packed(large, unpack=True)


def test_layers_that_are_not_packed_after_unpacking_say_why(net_graph):
    small, _ = packed(quantized(net_graph, linear=MXINT8))
    part, info = packed(small, unpack=True, include=["fc1"])
    reasons = {row["layer"]: row["why_float"] for row in info["rows"]}
    plain = "has no format for its weight"
    assert reasons == {"conv": plain, "bn": plain, "fc1": "was unpacked", "fc2": ""}
    reasons = {row["layer"]: row["why_float"] for row in packed(part, unpack=True)[1]["rows"]}
    assert reasons == {"conv": plain, "bn": plain, "fc1": "was not packed", "fc2": "was unpacked"}


@pytest.mark.long
def test_parameters_of_no_layer_are_one_line_of_the_table(monkeypatch):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
    )
    mg = quantized(MaseGraph(LlamaForCausalLM(config)), linear=MXINT8, embedding=MXINT8)
    tables = []
    monkeypatch.setattr(
        "chop.passes.transforms.pack.print_table", lambda _, rows: tables.append(rows)
    )
    passes.pack_transform_pass(mg, {})
    (line,) = [row for row in tables[0] if "reads directly" in row["why float"]]
    assert line["modules"] == 7 and line["elements"] == 7 * 32
    assert line["why float"].endswith("and 3 more)")


def test_layers_are_chosen_as_for_pruning(net_graph):
    mg = quantized(net_graph, linear=MXINT8, conv2d=MXINT8)

    def kinds(**settings):
        rows = packed(mg, **settings)[1]["rows"]
        return {row["layer"]: row["why_float"] for row in rows}

    assert kinds() == {"conv": "", "bn": "has no format for its weight", "fc1": "", "fc2": ""}
    assert kinds(include=["linear"])["conv"] == "is not selected"
    assert kinds(include=["linear"])["fc1"] == kinds(include=["fc."])["fc2"] == ""
    assert kinds(exclude=["conv2d", "fc2"])["fc2"] == "is not selected"
    with pytest.raises(ConfigError, match="no layer with parameters matches 'linaer'.*'linear'"):
        kinds(include=["linaer"])
    with pytest.raises(ConfigError, match="nothing to pack. Layer 'conv' has no format"):
        packed(net_graph)


def test_packing_in_steps_and_twice(net_graph):
    mg = quantized(net_graph, linear=MXINT8)
    once, first = packed(mg, include=["fc1"])
    twice, second = packed(once)
    assert first["packed"] == second["packed"] == 1
    assert [row["why_float"] for row in second["rows"]][-2:] == ["", ""]
    assert second["bytes"] < first["bytes"] < second["float_bytes"]
    assert packed(twice)[1]["packed"] == 0


def test_tied_weights_are_stored_once_and_stay_tied(tied_graph, tmp_path):
    mg, index = tied_graph
    mg = quantized(mg, linear=MXINT8, embedding=MXINT8)
    small, info = packed(mg)
    assert small.model.head.weight_codes is small.model.table.weight_codes
    assert info["bytes"] == 64 * 32 + 64 + 32 * 32 + 32 + 32 + 1
    small.export(tmp_path / "tied")
    reloaded = MaseGraph.from_checkpoint(tmp_path / "tied").model
    assert torch.equal(reloaded(index), mg.model(index))
    assert reloaded.head.weight_codes.data_ptr() == reloaded.table.weight_codes.data_ptr()
    large, _ = packed(small, unpack=True)
    assert large.model.head.weight is large.model.table.weight


def test_a_weight_that_something_float_shares_stays_float(tied_graph):
    mg, index = tied_graph
    mg = quantized(mg, linear=MXINT8)
    small, info = packed(mg)
    reasons = {row["layer"]: row["why_float"] for row in info["rows"]}
    assert reasons["hidden"] == "" and info["packed"] == 1
    assert small.model.head.weight is small.model.table.weight
    assert torch.equal(small.model(index), mg.model(index))


def test_passes_that_change_weights_refuse_packed_graphs(net_graph):
    small, _ = packed(quantized(net_graph, linear=MXINT8))
    for change, settings in [
        (passes.prune_transform_pass, {"weight": {"sparsity": 0.5}}),
        (passes.quantize_transform_pass, {"by": "type", "linear": MXINT4}),
        (passes.insert_lora_adapter_transform_pass, {"rank": 2}),
    ]:
        with pytest.raises(GraphError, match="layer 'fc1' is packed.*'unpack': True"):
            change(small, settings)


def test_pruned_layers_stay_pruned(net_graph):
    pruned, _ = passes.prune_transform_pass(net_graph, {"weight": {"sparsity": 0.5}})
    mg = quantized(pruned, linear=MXINT8)
    small, info = packed(mg)
    assert info["packed"] == 2
    x = torch.randn(3, 1, 6, 7)
    assert torch.equal(small.model(x), mg.model(x))
    zeros, before = (
        passes.report_sparsity_analysis_pass(g, {"quiet": True})[1]["weights"] for g in (small, mg)
    )
    counted = {row["parameter"]: row for row in zeros}
    for row in before:  # what rounds to zero is counted too
        assert row["hidden"] <= counted[row["parameter"]]["hidden"] < row["elements"]
    _, noted = passes.add_pruning_metadata_analysis_pass(small)
    assert noted["sparsity"] >= 0.5 and noted["layers"]["fc1"]["weight"]["method"] == "l1-norm"
    large, _ = packed(small, unpack=True)
    assert large.model.fc1.is_pruned and (large.model.fc1.weight_mask == 0).sum() >= 16
    assert dataclasses.asdict(large.provenance[-1])["name"] == "pack_transform_pass"


def test_the_table_is_printed_unless_silent(net_graph, capsys):
    mg = quantized(net_graph, linear=MXINT8)
    passes.pack_transform_pass(mg)
    text = capsys.readouterr().out
    assert "Storage of parameters" in text and "PackedLinear" in text
    assert "has no format" in text
    packed(mg)
    assert capsys.readouterr().out == ""


def test_statistics_of_packed_weights_are_those_of_their_values(net_graph):
    small, _ = packed(quantized(net_graph, linear=MXINT4))
    ranges = {"weight_statistics": {"range_min_max": {}}, "activation_statistics": {}}
    settings = {"by": "name", "target_weight_nodes": ["fc1"], "quiet": True, **ranges}
    _, info = passes.profile_statistics_analysis_pass(small, settings)
    found = info["statistics"]["fc1"]["args"]
    assert found.keys() == {"weight", "bias"}
    assert found["weight"]["range_min_max"]["max"] == small.model.fc1.weight.max()
