"""Texts before and after: what transformers generates of the same models, and only when asked."""

import pytest
import torch

from chop.actions.compress.job import compress
from chop.actions.compress.samples import Continuation
from chop.actions.compress.settings import CompressConfig
from chop.data import get_tokenized_dataset, get_tokenizer
from chop.errors import ConfigError
from tests.actions.compress.test_by_block import llama

SETTINGS = {
    "dataset": "stories",
    "limit": 6,
    "max_length": 32,
    "calibration_rows": 6,
    "formats": ("mxint:width=4",),
    "operands": ("weight",),
    "qat_epochs": 0,
    "bench_seconds": 0,
    "keep_best": True,
    "force": True,  # the model is not trained
    "seed": 1,
}
COUNT = 3


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    config = CompressConfig(model=llama(folder / "float", layers=1), out=folder / "out", **SETTINGS)
    with_texts = CompressConfig(**{**vars(config), "out": folder / "texts", "samples": COUNT})
    return folder, compress(with_texts), compress(config)


def generated(folder, prompt, most):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([prompt])
    end = get_tokenizer("gpt-tiny").eos_token_id
    found = model.generate(
        ids, do_sample=False, max_new_tokens=most, eos_token_id=end, pad_token_id=0, use_cache=True
    )
    return get_tokenizer("gpt-tiny").decode(found[0, len(prompt) :], skip_special_tokens=True)


@pytest.mark.long
def test_texts_are_those_that_transformers_generates(run):
    folder, result, _ = run
    data, tokenizer = get_tokenized_dataset(
        "stories", "gpt-tiny", True, max_length=32, limit=6, labeled=False
    )
    rows = [row["input_ids"] for row in data["test"]]
    assert len(result["texts"]) == COUNT
    for row, shown in zip(rows, result["texts"], strict=False):
        prompt = row[: len(row) // 2]
        text = tokenizer.decode(prompt, skip_special_tokens=True).strip()
        assert shown["beginning"] == f"\u201c{text}\u201d"
        most = min(24, max(map(len, rows)) - len(prompt))
        for column, model in (("float", "float"), ("compressed", "texts/model")):
            text = generated(folder / model, prompt, most).strip()
            assert shown[column] == f"\u201c{text}\u201d"


@pytest.mark.long
def test_texts_of_rows_are_in_results_that_asked_for_them_alone(run):
    folder, result, plain = run
    assert "texts" not in plain
    beginning = result["texts"][0]["beginning"].strip("\u201c\u201d")
    for name in ("table.md", "report.html", "report.json", "result.json"):
        assert beginning in (folder / "texts" / name).read_text()
    for path in (folder / "out").rglob("*"):
        assert path.is_dir() or beginning.encode() not in path.read_bytes()


def test_continuations_are_counted_up_to_the_first_difference():
    assert Continuation((1,), (5, 6, 7), (5, 6, 8)).same == 2
    assert Continuation((1,), (5, 6), (5, 6)).same == 2
    assert Continuation((1,), (5, 6, 7), (5, 6)).same == 2
    assert Continuation((1,), (), ()).same == 0


def test_models_that_write_no_texts_are_refused_before_anything_is_written(tmp_path):
    config = CompressConfig(model="mlp", out=tmp_path / "out", samples=1)
    with pytest.raises(ConfigError, match="samples: expected a causal language model on texts"):
        compress(config)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name != "manifest.json"]
