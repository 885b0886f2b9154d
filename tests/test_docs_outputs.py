"""What pages quote of runs, and lines for processes of torchrun: the runs of today say the same."""

import contextlib
import re
from pathlib import Path

import pytest
import torch
import transformers

from chop import MaseGraph, passes
from chop.actions.shard.job import shard
from chop.actions.shard.settings import ShardConfig
from chop.train import load_trained
from tests import programs
from tests.distributed import cluster
from tests.test_docs_blocks import block

pytestmark = [pytest.mark.slow, pytest.mark.long]
NUMBER = re.compile(r"\d[\d.,]*\d|\d")
LAYER = re.compile(r"'vit\.[\w.]+'")
MACHINE = re.compile(r"float, and with .*|float, not faster .*|^- Speed: .*")
"""Parts of the demo's last lines that depend on the processor and on what is installed."""


def sentences(text):
    """Verdict, points and page, numbers masked and lines joined, without what is of a machine."""
    found = re.split(r"\n(?=- |Page of )", text.strip())
    return [NUMBER.sub("N", MACHINE.sub("", " ".join(each.split()))) for each in found]


def test_the_demo_ends_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = programs.run(programs.COMMAND, "demo")
    told = sentences(done.stdout[done.stdout.index("saved integer") :])
    expected = sentences(block("guide/compress", "saved integer"))
    assert told == expected and len(told) == 5


def test_the_warning_of_a_format_that_fits_badly_is_quoted():
    mg = MaseGraph(load_trained("vit"))
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    rule = {"config": {"name": "integer", "width": 4, "frac_width": 2}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule, "conv2d": rule})
    with pytest.warns() as found:
        passes.summarize_quantization_analysis_pass(mg, {"silent": True})
    said = [f"{type(each.message).__name__}: {each.message}" for each in found]
    quoted = " ".join(block("guide/compress", "PoorFit").split())
    # Which of two layers that lose everything is the worst depends on the processor.
    assert LAYER.sub("", quoted) in [LAYER.sub("", text) for text in said]


def test_the_table_of_plans_is_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    done = programs.run(programs.COMMAND, "shard", "--memory", "190kB", "--plan-only")
    head, auto, *quoted, sent = block("guide/shard", "plan  ").splitlines()
    lines = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in done.stdout.splitlines()]
    assert re.split(r" {2,}", head) in lines
    assert [row for row in map(str.split, quoted) if row not in lines] == []
    # Among plans of the same predicted time, which one is found depends on the solver's version.
    (found,) = [line for line in lines if line[:1] == ["auto"]]
    for name, _, peak, predicted, *_ in (found, auto.split()):
        assert name == "auto" and float(peak) <= 190 and float(predicted) == 0.081
    assert sent.partition(":")[0] in " ".join(done.stdout.split())


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 32}
IMPORTS = """import json
from transformers import AutoModelForSequenceClassification
from transformers.distributed import DistributedConfig
from chop import MaseGraph, passes
from chop.models.meta import meta_model, weights_source
"""


def inputs():
    ids = torch.arange(16).reshape(2, 8)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def on_a_rank(folder, code, name):
    """What a block leaves under a name, called on one input: its logits, from these processes."""
    names = {}
    with contextlib.chdir(folder):
        exec(IMPORTS + code, names)
    found = names[name]
    with torch.no_grad():
        outputs = getattr(found, "model", found)(**inputs())
    return (outputs["logits"] if isinstance(outputs, dict) else outputs.logits).tolist()


@pytest.mark.parametrize(
    ("page", "beginning", "kind", "name", "result"),
    [
        ("shard-python", "model = meta_model", "LlamaForCausalLM", "my-llama", "sharded"),
        ("shard", "config = Distributed", "BertForSequenceClassification", "my-bert", "model"),
    ],
)
def test_lines_for_processes_of_torchrun_give_the_models_logits(
    page, beginning, kind, name, result, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    whole = made(made.config_class(**SIZES)).eval()
    whole.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    if name == "my-bert":
        settings = {"mesh": 2, "plan": "megatron", "export_tp_plan": True}
        shard(ShardConfig(model="./my-bert", out=Path("runs/shard"), **settings))
    code = block(f"guide/{page}", beginning)
    with torch.no_grad():
        expected = whole(**inputs()).logits
    for logits in cluster.run(on_a_rank, 2, str(tmp_path), code, result):
        assert torch.allclose(torch.tensor(logits), expected, atol=1e-5)
