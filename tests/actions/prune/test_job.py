"""`chop prune`: the folder that transformers loads, the numbers beside it, and refusals."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chop.actions.prune.job import prune
from chop.actions.prune.settings import PruneDecoderConfig
from chop.errors import ConfigError
from chop.models import get_tokenizer, load_model
from chop.runs import read_manifest
from chop.workloads.workload import Workload

SIZES = {"layers": 1, "mlp_width": 100, "kv_heads": 1}
FIELDS = {"num_hidden_layers": 1, "intermediate_size": 100, "num_key_value_heads": 1}
SMALL = {"calibration_rows": 8, "limit": 24, "max_length": 32}


def workload():
    model = load_model("gpt-tiny")
    ids = torch.randint(3, 200, (24, 12), generator=torch.Generator().manual_seed(0))
    rows = {"input_ids": ids, "labels": ids}
    return Workload.of(model, rows, rows, task="causal-lm", device="cpu")


def test_the_folder_has_the_sizes_and_the_result_the_numbers(tmp_path):
    config = PruneDecoderConfig(out=tmp_path, calibration_rows=8, device="cpu", **SIZES)
    subject = workload()
    result = prune(config, subject)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert {name: getattr(model.config, name) for name in FIELDS} == FIELDS
    original, pruned = result["models"]
    assert pruned["parameters"] == model.num_parameters() < original["parameters"]
    assert {name: pruned[name] for name in SIZES} == SIZES
    assert pruned["perplexity"] == pytest.approx(subject.evaluate(model, subject.test), rel=1e-5)
    assert [row["removed"] for row in result["layers"]].count(True) == 1
    assert json.loads((tmp_path / "result.json").read_text())["models"] == result["models"]
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("prune", "finished")
    assert "removed" in (tmp_path / "table.md").read_text()


@pytest.mark.long
def test_the_folder_of_a_named_model_has_a_tokenizer(tmp_path):
    named = load_model("gpt-tiny")
    for each in (named, get_tokenizer("gpt-tiny")):
        each.save_pretrained(tmp_path / "mine")
    (tmp_path / "texts.txt").write_text("Tom has a red ball. The ball is big.\n" * 40)
    texts = {"model": str(tmp_path / "mine"), "dataset": str(tmp_path / "texts.txt")}
    settings = {"mlp_width": 64, "force": True, "device": "cpu", **texts, **SMALL}
    prune(PruneDecoderConfig(out=tmp_path / "out", **settings))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out/model")) > 0


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="give at least one of layers"):
        PruneDecoderConfig(out=tmp_path)
    with pytest.raises(ConfigError, match="expected a number from 1 to 2"):
        prune(PruneDecoderConfig(out=tmp_path, layers=3), workload())
    points = torch.randn(20, 4), torch.randint(2, (20,))
    classifier = Workload.of(torch.nn.Linear(4, 2), points, points, device="cpu")
    with pytest.raises(ConfigError, match="expected a language model"):
        prune(PruneDecoderConfig(out=tmp_path, layers=1), classifier)
    assert not (tmp_path / "model").exists()
