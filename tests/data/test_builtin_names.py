"""Names of built-in data, models and tokenizers: what is on disk wins."""

import logging

import pytest
from torch import nn

from chop.base.notices import Assumption, assume, collected_assumptions
from chop.data import describe_dataset, get_tokenizer, load_dataset
from chop.data.load import builtin_dataset
from chop.errors import ConfigError
from chop.models import builtin_model, get_model, load_model
from chop.train import default_dataset
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig, short_name

ROWS = "text,label\n" + "good film,1\nbad film,0\n" * 10
NUMBERS = "a,b,label\n" + "1.5,2,1\n0.5,1,0\n" * 10
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name, text):
    (path := get_folder(name)).mkdir()
    (path / "train.csv").write_text(text)


def get_folder(name):
    from pathlib import Path

    return Path(name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["reviews", "digits", "stories", "toy", "jsc"])
def test_a_folder_wins_over_a_data_set_of_its_name(name, caplog):
    put(name, ROWS)
    caplog.set_level(logging.WARNING, "chop.data")
    assert load_dataset(name)["train"].column_names == ["text", "label"]
    assert (
        f"data set '{name}' is read from './{name}'; the built-in one is builtin:{name}"
        in caplog.text
    )
    assert builtin_dataset(name) is None and builtin_dataset(f"builtin:{name}") == name
    assert describe_dataset(name, load_dataset(name)).kind == "nlp"


def test_the_prefix_means_the_built_in_one():
    put("digits", ROWS)
    assert load_dataset("builtin:digits")["train"].column_names != ["text", "label"]
    assert builtin_dataset("reviews") == "reviews"  # nothing on disk
    with pytest.raises(ConfigError, match="no built-in data set 'digit': did you mean 'digits'"):
        load_dataset("builtin:digit")
    with pytest.raises(ConfigError, match="no built-in model 'resnet18'"):
        load_model("builtin:resnet18")
    assert short_name("builtin:vit") == "vit"
    assert len(default_dataset("cnn")["train"]) > 20  # of the built-in digits, not of the folder


def test_a_file_wins_and_an_empty_folder_names_the_way():
    get_folder("toy").mkdir()
    with pytest.raises(ConfigError, match=r"'toy' .*The built-in one is builtin:toy"):
        load_dataset("toy")
    get_folder("reviews").write_text(ROWS)
    with pytest.raises(ConfigError, match=r"file 'reviews': .*The built-in one is builtin:reviews"):
        load_dataset("reviews")
    get_folder("digits").mkdir()
    (get_folder("digits") / "manifest.json").write_text("{}")  # the output of a run
    assert builtin_dataset("digits") == "digits"


def saved_bert(name, labels):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = BertConfig(vocab_size=40, intermediate_size=8, num_labels=labels, **sizes)
    BertForSequenceClassification(config).save_pretrained(name)


def test_a_folder_wins_over_a_model_of_its_name(caplog):
    caplog.set_level(logging.WARNING, "chop.data")
    saved_bert("cnn", 3)
    model = load_model("cnn")
    assert type(model).__name__ == "BertForSequenceClassification" and model.num_labels == 3
    assert "model 'cnn' is read from './cnn'; the built-in one is builtin:cnn" in caplog.text
    assert type(load_model("builtin:cnn")).__name__ == "DigitsCNN"
    assert type(get_model("cnn", pretrained=True)).__name__ == "BertForSequenceClassification"


def test_a_folder_without_a_model_leaves_the_built_in_one(caplog):
    caplog.set_level(logging.WARNING, "chop.data")
    get_folder("mlp").mkdir()
    assert isinstance(load_model("mlp"), nn.Module) and builtin_model("mlp") == "mlp"
    assert "model 'mlp' is the built-in one, since './mlp' contains no model" in caplog.text


def test_a_folder_wins_over_a_tokenizer_of_its_name():
    get_tokenizer("gpt-tiny").save_pretrained("bert-tiny")
    assert get_tokenizer("bert-tiny").get_vocab() == get_tokenizer("gpt-tiny").get_vocab()
    own = get_tokenizer("builtin:bert-tiny").get_vocab()
    assert own != get_tokenizer("gpt-tiny").get_vocab()


def test_a_job_says_which_one_it_has(capsys):
    (get_folder("net.py")).write_text(NET)
    put("digits", NUMBERS)
    found = load_workload(WorkloadConfig(model="net.py:Net", dataset="digits"))
    assert found.test.columns["x"].shape == (4, 2)
    assert any("'digits' is read from './digits'" in each.text for each in found.assumptions)
    built_in = load_workload(WorkloadConfig(model="builtin:mlp", dataset="builtin:digits"))
    assert built_in.name == "mlp" and built_in.title == "mlp on digits"
    assert "loading mlp (built in) and its rows" in capsys.readouterr().out
    texts = [each.text for each in built_in.assumptions]
    assert "Model: mlp (built in); data: digits (built in)." in texts
    with pytest.raises(ConfigError, match="is trained on 'digits', not on 'digits'"):
        load_workload(WorkloadConfig(model="mlp", dataset="digits"))


def test_assumptions_are_noted_once_and_by_those_around(caplog):
    log = logging.getLogger("chop.data")
    with collected_assumptions() as outer:
        assume("first", about="rows")
        with collected_assumptions() as inner:
            assume("second", log)
            assume("second", log)
    assume("third")
    assert inner == [Assumption("second")]
    assert outer == [Assumption("first", "rows"), Assumption("second")]
    assert [record.getMessage() for record in caplog.records] == ["second"]
