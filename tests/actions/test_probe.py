"""A model that cannot take its rows is one sentence, before anything is trained or captured."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

import chop
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.train import Rows
from chop.workloads.load import load_workload
from chop.workloads.probe import check_forward
from chop.workloads.settings import WorkloadConfig

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += self.training
        return self.fc(x + 0 * torch.rand(1))

class Wide(Net):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

class Mixed(Net):
    def __init__(self):
        super().__init__()
        self.fc.double()
        self.scale = nn.Parameter(torch.ones(()))

class Two(Net):
    def forward(self, x, y):
        return self.fc(x) + y

class Pair(Net):
    def forward(self, x, y):
        return torch.stack([x, y], 1)

class Image(Net):
    def forward(self, x):
        batch, channels, height, width = x.shape
        return self.fc(x)
"""
REFUSED = {
    "Wide": r"line \d+, in Net.forward, raises RuntimeError: mat1 and mat2 shapes",
    "Mixed": "raises RuntimeError: mat1 and mat2 must have the same dtype",
    "Two": "missing 1 required positional argument: 'y'",
    "Image": "in Image.forward, raises ValueError: not enough values to unpack",
}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    lines = [f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["p,q,r,label", *lines]))

    def made(net, **settings):
        settings = {"dataset": str(tmp_path / "a.csv"), "out": tmp_path / "out", **settings}
        return WorkloadConfig(model=net, device="cpu", **settings)

    return made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("net", REFUSED)
def test_a_forward_that_does_not_fit_is_refused(net, epochs, config, tmp_path):
    with pytest.raises(ConfigError, match=REFUSED[net]) as caught:
        load_workload(config(f"{tmp_path}/net.py:{net}", train_epochs=epochs))
    assert "x float32 (3, 3)" in str(caught.value)


def test_the_call_leaves_no_trace(config, tmp_path):
    state = torch.get_rng_state()
    model = load_workload(config(f"{tmp_path}/net.py:Net")).model
    assert model.calls == 0 and not model.training
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["net.py", "weights.safetensors", "model.pt"])
def test_a_file_without_a_class_is_refused(name, config, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"is a file: pass its class as well, such as .*:Net"):
        load_workload(config(f"{tmp_path}/{name}"))


@pytest.mark.parametrize("name", ["model", "dataset", "weights", "tokenizer"])
def test_the_home_folder_is_put_in_for_its_mark(name, config, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = config(**{"net": "~/net.py:Net"} if name == "model" else {"net": "a", name: "~/b"})
    assert getattr(given, name).startswith(f"{tmp_path}/")


def test_one_column_for_texts_and_labels_is_refused(config):
    with pytest.raises(ConfigError, match="'a' is also the label_column"):
        config("a", text_column="a", label_column="a")


@pytest.mark.parametrize("header", ["text,label", "text,kind"])
def test_swapped_columns_of_texts_and_labels_are_named(header, config, tmp_path):
    lines = [f"film number {i},{('bad', 'good')[i % 2]}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines]))
    text, label = header.split(",")
    given = config(f"{tmp_path}/net.py:Net", text_column=label, label_column=text)
    way_out = f"'text' has 16 .* '{label}' 2; use --text-column text --label-column {label}"
    with pytest.raises(ConfigError, match=f"seem to be swapped: {way_out}"):
        load_workload(given)
    with pytest.raises(ConfigError, match="needs --tokenizer"):  # its own model
        load_workload(replace(given, text_column=text, label_column=label))


def test_columns_that_differ_by_case_or_blanks_are_the_inputs(config, tmp_path):
    (tmp_path / "a.csv").write_text("X, y ,label\n" + "1.5,2.5,0\n3.5,4.5,1\n" * 20)
    with collected_assumptions() as assumed:
        loaded = load_workload(config(f"{tmp_path}/net.py:Pair"))
    assert {*loaded.test.columns} == {"x", "y"}
    texts = [each.text for each in assumed]
    assert "The columns 'X', ' y ' are the inputs 'x', 'y' of the model." in texts


@pytest.mark.parametrize("extra", ["bird", "zebra"])
def test_a_class_without_training_rows_is_named(extra, config, tmp_path):
    rows = "1,2,3,cat\n2,3,1,dog\n" * 20
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text(f"p,q,r,label\n{rows}")
    (tmp_path / "set" / "test.csv").write_text(f"p,q,r,label\n{rows}5,6,7,{extra}\n")
    message = f"the rows have 3, .*no training row is of {extra}: remove .* names in --class-names"
    with pytest.raises(ConfigError, match=message):
        load_workload(config(f"{tmp_path}/net.py:Net", dataset=str(tmp_path / "set")))


def test_a_classifier_of_texts_without_a_padding_token_is_named():
    sizes = {"vocab_size": 64, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    model = GPT2ForSequenceClassification(GPT2Config(**sizes))
    ids = torch.tensor([[1, 2, 9]] * 3)
    with pytest.raises(ConfigError, match="'tiny' has no pad_token_id, which batches of texts"):
        check_forward(model, Rows({"input_ids": ids}, ids[:, 0]), "tiny", "mine")


def test_tokens_beyond_the_vocabulary_are_named():
    config = GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    ids = torch.tensor([[1, 2, 99]])
    with pytest.raises(ConfigError, match=r"vocabulary of 64 tokens, .* the token ID 99: use"):
        check_forward(GPT2LMHeadModel(config), Rows({"input_ids": ids}, ids), "tiny", "mine")


@pytest.mark.parametrize("is_one_row", [True, False])
def test_one_row_without_a_batch_dimension_is_named(is_one_row):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with pytest.raises(ConfigError, match=r"'Sequential' cannot take rows of 'data'") as refused:
        chop.quantize(model, "8.auto", data=torch.ones(4) if is_one_row else torch.ones(4, 3))
    assert ("(4,), as one row. If it is one row x, add" in str(refused.value)) == is_one_row
