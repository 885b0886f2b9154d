"""BERT as a circuit: tables, masks, encoder, pooler and classifier; texts of all lengths."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph, passes
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.errors import ConfigError
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, checks, run_check
from chop.hardware.design.emit import emit as emit_design
from chop.hardware.design.indices import index_edge
from chop.integer.golden import golden_values
from tests.hardware.bench import check_graph

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
LENGTH, WORDS, ROWS, REVIEWS = 5, 40, 5, 200


def inputs(rows=ROWS, length=LENGTH):
    """Texts of all lengths from 1, of both token types, with padding behind them."""
    lengths = torch.arange(rows) % length + 1
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.randint(1, WORDS, (rows, length)) * mask
    types = (torch.arange(length) * 2 >= lengths[:, None]).long() * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def lowered(**settings):
    """A BERT of one layer on integers, and what it was lowered with."""
    shape = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    config = BertConfig(
        **{"vocab_size": WORDS, "num_hidden_layers": 1, "max_position_embeddings": 9, **shape},
        **settings,
    )
    batch = inputs()
    model = BertForSequenceClassification(config).eval()
    mg = MaseGraph(model, dummy_in=batch)
    number_format = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    rules = {"by": "type", "default": number_format}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    return passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})[0], batch


@pytest.mark.long
def test_a_whole_bert_of_one_layer_equals_the_integer_graph(tmp_path):
    mg, batch = lowered()
    design, outputs, interval, _ = check_graph(mg, batch, 96, tmp_path)
    assert [port.name for port in design.ports if port.is_input] == list(batch)
    assert outputs.numel() == 2 * ROWS
    assert abs(interval - design.interval) <= 0.03 * design.interval


@pytest.mark.long
def test_the_latency_of_a_slow_design_is_planned(tmp_path):
    mg, batch = lowered()
    design = emit_design(mg, fold=500)
    project, codes = (
        describe_project(design),
        get_codes(describe_project(design), golden_values(mg, batch)),
    )
    write_circuit(design, codes, tmp_path)
    measured = run_check(tmp_path, project, codes, Check("icarus", PROFILES[0], 1, 1)).cycles
    planned = design.connections.schedule.latency(design.netlist)
    assert abs(planned - measured) <= 0.05 * measured


def test_inputs_are_rows_of_tables_or_masks():
    mg, _ = lowered()
    edges = {n.target: index_edge(mg, n) for n in mg.nodes if n.op == "placeholder"}
    ends = {name: (edge.low, edge.high) for name, edge in edges.items()}
    assert ends == {
        "input_ids": (0, WORDS - 1),
        "attention_mask": (0, 1),
        "token_type_ids": (0, 1),
    }
    (tables,) = (n for n in mg.nodes if n.name == "bert_embeddings_word_embeddings")
    with pytest.raises(ConfigError, match="read by embeddings, attention masks or position"):
        index_edge(mg, tables)


@pytest.mark.data
@pytest.mark.long
def test_bert_tiny_equals_the_integer_graph_on_reviews_of_mixed_lengths(
    data_folder, tmp_path, monkeypatch
):
    """Icarus takes minutes for one sample of a design of this size: it runs one, without stalls."""
    monkeypatch.setattr("chop.actions.emit.job.checks", lambda *given: checks(*given)[:5])
    config = EmitConfig(
        model=str(data_folder / "bert-tiny-imdb"),
        dataset=str(data_folder / "rotten_tomatoes"),
        out=tmp_path / "bert",
        max_length=32,
        limit=REVIEWS,
        fold=13_000,
        icarus_samples=1,
        synthesis=False,
    )
    result = emit(config)
    rows = result["verification"]
    assert [(row["simulator"], row["equal"]) for row in rows] == [
        *[("verilator", 2 * REVIEWS)] * 4,
        ("icarus", 2),
    ]
    assert abs(rows[0]["interval"] - result["interval"]) <= 0.03 * result["interval"]
    assert result["accuracy"]["integer"] > 0.6
