"""A decoder as a circuit: RMSNorm, rotary embeddings, grouped queries, causal masks and SwiGLU."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph, passes
from chop.actions.emit.job import emit
from chop.actions.emit.lower import lower_workload
from chop.actions.emit.settings import EmitConfig
from chop.hardware.check.verify import checks
from chop.workloads.load import workload_for
from tests.hardware.bench import check_graph
from tests.integer.test_decoding import learned, llama, tokens
from tests.integer.test_decoding import lowered as decoded

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
LENGTH, WORDS, ROWS, STORIES = 4, 9, 3, 100


def lowered():
    """A Llama of one layer on integers, and texts of all lengths that end with padding."""
    lengths = torch.arange(ROWS) % LENGTH + 2
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    batch = {"input_ids": torch.randint(1, WORDS, (ROWS, LENGTH)) * mask, "attention_mask": mask}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    shape = {"hidden_size": 8, "intermediate_size": 6, "max_position_embeddings": 9}
    config = LlamaConfig(vocab_size=WORDS, num_hidden_layers=1, **heads, **shape, use_cache=False)
    mg = MaseGraph(LlamaForCausalLM(config).eval(), dummy_in=batch)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, _ = passes.fuse_rms_norm_transform_pass(mg)
    number_format = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": number_format})
    return passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})[0], batch


@pytest.mark.long
def test_a_whole_decoder_of_one_layer_equals_the_integer_graph(tmp_path):
    mg, batch = lowered()
    design, outputs, interval, _ = check_graph(mg, batch, 48, tmp_path)
    modules = {part.module for part in design.netlist.instances}
    assert modules > {"chop_masked_softmax", "chop_layer_norm", "chop_copies", "chop_negate"}
    assert outputs.numel() == ROWS * LENGTH * WORDS
    assert abs(interval - design.interval) <= 0.03 * design.interval


@pytest.mark.parametrize(
    ("made", "fold"), [(learned, 40), pytest.param(llama, 64, marks=pytest.mark.long)]
)
def test_a_decoder_token_by_token_equals_the_integer_graph(made, fold, tmp_path):
    mg, batch = made()
    step, _ = decoded(mg, batch, internal_bits="small")
    design, outputs, interval, latency = check_graph(step, tokens(batch), fold, tmp_path)
    assert [part.module for part in design.netlist.instances].count("chop_cached_matmul") == 2
    assert outputs.shape == (18, 1, 11)
    assert abs(interval - design.interval) <= 0.03 * design.interval
    assert latency <= design.connections.schedule.latency(design.netlist)


@pytest.mark.long
def test_gpt_tiny_equals_the_integer_graph_on_stories(tmp_path, monkeypatch):
    """Icarus takes five minutes for one story: it runs one, without stalls."""
    monkeypatch.setattr("chop.actions.emit.job.checks", lambda *given: checks(*given)[:5])
    config = EmitConfig(
        model="gpt-tiny",
        out=tmp_path / "gpt",
        max_length=16,
        samples=STORIES,
        fold=24_000,
        calibration_rows=64,
        icarus_samples=1,
        synthesis=False,
    )
    result = emit(config)
    rows = result["verification"]
    outputs = 16 * 365
    assert [(row["simulator"], row["equal"]) for row in rows] == [
        *[("verilator", STORIES * outputs)] * 4,
        ("icarus", outputs),
    ]
    assert abs(rows[0]["interval"] - result["interval"]) <= 0.03 * result["interval"]


@pytest.mark.long
def test_gpt_tiny_token_by_token_generates_what_the_integer_graph_does(tmp_path):
    """The circuit reads each token that it has chosen before; all prefixes are one sequence."""
    config = EmitConfig(model="gpt-tiny", max_length=32, calibration_rows=64, decode=True)
    lowering = lower_workload(workload_for(config, None), config, 1)
    whole, _ = passes.lower_to_integer_transform_pass(
        lowering.quantized, {"batches": [lowering.whole]}
    )
    text = torch.full((1, 33), lowering.integer.model.config.bos_token_id)
    for place in range(32):
        inputs = {"input_ids": text[:, :32], "attention_mask": torch.ones_like(text[:, :32])}
        text[0, place + 1] = whole.model(**inputs).logits[0, place].argmax()
    steps = {"input_ids": text[0, :32, None], "start": lowering.batch["start"]}
    _, outputs, interval, _ = check_graph(
        lowering.integer, steps, 24_000, tmp_path, simulator="verilator"
    )
    assert torch.equal(outputs.argmax(-1).flatten(), text[0, 1:])
    assert text.unique().numel() > 8 and interval < 24_000
