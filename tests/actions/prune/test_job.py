"""`chop prune`: the folder that transformers loads, the numbers beside it, and refusals."""

import copy
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

SIZES = {"layers": 1, "mlp_width": 100, "kv_heads": 1, "hidden_size": 96}
FIELDS = {
    "num_hidden_layers": 1,
    "intermediate_size": 100,
    "num_key_value_heads": 1,
    "hidden_size": 96,
}
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
    with torch.no_grad():
        p, q = (m(subject.test.columns["input_ids"]).logits for m in (subject.model, model))
    p, q = p[:, :-1].double().log_softmax(-1), q[:, :-1].double().log_softmax(-1)
    kl = float((p.exp() * (p - q)).sum(-1).mean())
    assert (original["kl"], pruned["kl"]) == (0, pytest.approx(kl, rel=1e-4))
    low, high = pruned["perplexity_interval_95"]
    assert low < pruned["perplexity"] < high
    assert [row["removed"] for row in result["layers"]].count(True) == 1
    assert json.loads((tmp_path / "result.json").read_text())["models"] == result["models"]
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("prune", "finished")
    assert "removed" in (tmp_path / "table.md").read_text()


def test_distillation_comes_nearer_to_the_original_and_resumes(tmp_path):
    config = PruneDecoderConfig(
        out=tmp_path,
        layers=1,
        mlp_width=100,
        calibration_rows=8,
        device="cpu",
        distill=True,
        finetune_epochs=4,
        finetune_lr=3e-3,
        batch_size=8,
    )
    subject = workload()
    before = copy.deepcopy(subject.model.state_dict())
    result = prune(config, subject)
    _, pruned, distilled = result["models"]
    assert distilled["model"] == "distilled" and distilled["kl"] < 0.9 * pruned["kl"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    value = subject.evaluate(model, subject.test)
    assert distilled["perplexity"] == pytest.approx(value, rel=1e-5)
    assert all(torch.equal(x, before[name]) for name, x in subject.model.state_dict().items())
    assert "Fine-tuned against the float model" in " ".join(result["assumptions"])
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert prune(config, subject)["models"] == result["models"]
    assert (tmp_path / "answers.jsonl").read_text().splitlines() == lines and len(lines) == 48


def test_layers_learn_from_the_layers_that_they_were(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "chop.actions.prune.job.fit", lambda model, rows, **more: given.update(more)
    )
    config = PruneDecoderConfig(
        out=tmp_path,
        layers=1,
        calibration_rows=8,
        device="cpu",
        distill=True,
        distill_hidden="mse",
    )
    result = prune(config, workload())
    (stayed,) = [row["layer"] for row in result["layers"] if not row["removed"]]
    assert given["distill"].matched == {"model.layers.0": f"model.layers.{stayed}"}


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
    with pytest.raises(ConfigError, match="pass at least one of layers"):
        PruneDecoderConfig(out=tmp_path)
    with pytest.raises(ConfigError, match="expected 1 to 2"):
        prune(PruneDecoderConfig(out=tmp_path, layers=3), workload())
    with pytest.raises(ConfigError, match="finetune_lr: nothing is trained"):
        PruneDecoderConfig(out=tmp_path, layers=1, finetune_lr=1e-3)
    with pytest.raises(ConfigError, match="distill: nothing is trained"):
        PruneDecoderConfig(out=tmp_path, layers=1, distill=True, finetune_epochs=0)
    hidden = {"distill": True, "distill_hidden": "mse", "distill_teacher": "other"}
    with pytest.raises(ConfigError, match="leave distill_teacher or layers out"):
        PruneDecoderConfig(out=tmp_path, layers=1, **hidden)
    points = torch.randn(20, 4), torch.randint(2, (20,))
    classifier = Workload.of(torch.nn.Linear(4, 2), points, points, device="cpu")
    with pytest.raises(ConfigError, match="expected a language model"):
        prune(PruneDecoderConfig(out=tmp_path, layers=1), classifier)
    with pytest.raises(ConfigError, match="expected a language model, and 'bert-tiny' is a model"):
        prune(PruneDecoderConfig(out=tmp_path, layers=1, model="bert-tiny"))
    own = {"model": "net.py:Net", "dataset": "texts.txt"}
    with pytest.raises(ConfigError, match="got 'net.py:Net'; chop sweep prune prunes other models"):
        prune(PruneDecoderConfig(out=tmp_path, layers=1, **own))
    assert not (tmp_path / "model").exists()


def test_a_size_beyond_the_models_names_the_option(tmp_path):
    config = PruneDecoderConfig(out=tmp_path, calibration_rows=8, device="cpu", layers=70)
    with pytest.raises(ConfigError, match=r"--layers: got 70, and the model has \d"):
        prune(config, workload())
