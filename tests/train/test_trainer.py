import gc
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from torch import fx, nn
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from chop.data import get_tokenized_dataset, load_dataset
from chop.errors import ConfigError, UnavailableError
from chop.ir.graph import MaseGraph
from chop.models import load_model
from chop.train import evaluate, get_trainer
from chop.train.classification import Collator

QUIET = {"disable_tqdm": True}


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def reviews():
    return get_tokenized_dataset("reviews", "bert-tiny", return_tokenizer=True, limit=64)


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class OfTokensOnly(nn.Module):
    """Takes neither the mask nor the labels, as a graph captured without them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 8, padding_idx=0)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids):
        return {"logits": self.head(self.embedding(input_ids).sum(1))}


@pytest.mark.parametrize(
    "make",
    [lambda: load_model("mlp"), plain, lambda: fx.symbolic_trace(plain())],
    ids=["our convention", "plain", "graph"],
)
@pytest.mark.sampled(1)
def test_training_learns_and_evaluation_agrees_with_the_lean_loop(digits, make):
    model = make()
    trainer = get_trainer(
        model, digits, num_train_epochs=2, learning_rate=5e-3, train_batch_size=32, **QUIET
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert before["eval_accuracy"] < 0.3 < 0.8 < after["eval_accuracy"]
    assert after["eval_loss"] < before["eval_loss"]
    assert after["eval_accuracy"] == pytest.approx(evaluate(model, digits))


def captured(*names):
    return lambda: MaseGraph(load_model("bert-tiny"), hf_input_names=list(names)).model


@pytest.mark.parametrize(
    "make",
    [
        lambda: load_model("bert-tiny"),
        OfTokensOnly,
        captured("input_ids", "attention_mask", "labels"),
        captured("input_ids", "attention_mask"),
    ],
    ids=["hugging face", "tokens only", "graph with its loss", "graph without"],
)
@pytest.mark.sampled(1)
def test_text_models_with_and_without_labels_and_masks(reviews, make):
    data, tokenizer = reviews
    model = make()
    metrics = ["accuracy", "f1"]
    trainer = get_trainer(
        model, data, tokenizer, evaluate_metric=metrics, train_batch_size=16, **QUIET
    )
    assert trainer.train().global_step == 4
    scores = trainer.evaluate()
    assert scores["eval_accuracy"] == pytest.approx(evaluate(model, data))
    assert scores["eval_f1"] == pytest.approx(evaluate(model, data, metric="f1"))


def test_equal_seeds_give_equal_weights(digits):
    def train(seed):
        model = load_model("mlp")
        get_trainer(model, digits, seed=seed, max_steps=5, **QUIET).train()
        return model.fc1.weight.detach().clone()

    first = train(1)
    assert torch.equal(first, train(1))
    assert not torch.equal(first, train(2))


def mases_trainer(model, data, tokenizer, folder):
    """A Trainer with the arguments that MASE gives it: none but the number of epochs."""
    arguments = TrainingArguments(
        folder, report_to="none", num_train_epochs=1, use_cpu=True, dataloader_pin_memory=False
    )
    return Trainer(
        model,
        arguments,
        train_dataset=data["train"],
        data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
        processing_class=tokenizer,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="compares on the CPU")
def test_the_defaults_train_to_the_weights_of_mases_trainer(reviews, tmp_path):
    data, tokenizer = reviews
    theirs, ours = load_model("bert-tiny"), load_model("bert-tiny")
    mases_trainer(theirs, data, tokenizer, tmp_path).train()
    trainer = get_trainer(ours, data, tokenizer, **QUIET)
    trainer.train()
    assert trainer.args.learning_rate == 5e-5 and trainer.state.global_step == 8
    before = load_model("bert-tiny").state_dict()
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], expected, rtol=0, atol=1e-7)
    assert any(not torch.equal(x, before[name]) for name, x in ours.state_dict().items())
    asked = get_trainer(ours, data, learning_rate=0.5, train_batch_size=3, seed=1, **QUIET).args
    assert (asked.learning_rate, asked.train_batch_size, asked.seed) == (0.5, 3, 1)


def test_no_stray_files_unless_asked_for(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = get_trainer(load_model("mlp"), digits, max_steps=2, **QUIET)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    assert folder.is_dir() and list(folder.iterdir()) == []
    del trainer
    gc.collect()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_latest_checkpoint_is_kept_where_asked(digits, tmp_path):
    model = load_model("mlp")
    trainer = get_trainer(
        model, digits, output_dir=tmp_path / "run", num_train_epochs=2, max_steps=-1, **QUIET
    )
    trainer.train()
    (checkpoint,) = (tmp_path / "run").iterdir()
    assert checkpoint.name == f"checkpoint-{trainer.state.global_step}"
    from safetensors.torch import load_file

    saved = load_file(checkpoint / "model.safetensors")
    assert torch.equal(saved["fc1.weight"], model.fc1.weight)


def test_no_warning_and_no_chatter_on_standard_error(reviews, capfd):
    data, tokenizer = reviews
    trainer = get_trainer(load_model("bert-tiny"), data, tokenizer, max_steps=1, **QUIET)
    trainer.train()
    trainer.evaluate()
    assert capfd.readouterr().err == ""


def test_bad_arguments_are_named(digits, reviews):
    model = load_model("mlp")
    with pytest.raises(ConfigError, match=r"unknown metric 'acc': "):
        get_trainer(model, digits, evaluate_metric="acc")
    with pytest.raises(ConfigError, match="unknown argument 'learning_rat': did you mean 'learni"):
        get_trainer(model, digits, learning_rat=1e-3)
    with pytest.raises(ConfigError, match="but the data set has"):
        get_trainer(model, reviews[0])
    with pytest.raises(ConfigError, match="no labeled split 'train'"):
        get_trainer(model, {"test": digits["test"]})


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without Apple GPU")
def test_an_absent_gpu_is_named(digits):
    with pytest.raises(UnavailableError, match="no Apple GPU"):
        get_trainer(load_model("mlp"), digits, use_mps_device=True)


@pytest.mark.parametrize("label, told", [(0.37, "the label 0.37"), ([0, 1], "of shape")])
def test_labels_that_are_no_classes_are_refused_and_not_cut(label, told):
    rows = [{"x": torch.zeros(3), "labels": label}] * 2
    collator = Collator({"x": "x"}, "labels", 0)
    with pytest.raises(ConfigError, match=f"trains classifiers, got .*{told}.* chop.train.fit"):
        collator(rows)
    whole = [{"x": torch.zeros(3), "labels": torch.tensor(2.0)}] * 2
    assert collator(whole)["labels"].tolist() == [2, 2]


def test_negative_labels_are_refused_and_ignored_ones_count_in_no_metric():
    collator = Collator({"x": "x"}, "labels", 0)
    with pytest.raises(ConfigError, match="got the label -1; classes are numbered from 0"):
        collator([{"x": torch.zeros(3), "labels": -1}])
    rows = [{"x": torch.eye(3)[i % 3], "labels": i % 3 if i < 3 else -100} for i in range(6)]
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
        model.bias.zero_()
    rows = Dataset.from_list([{**row, "x": row["x"].tolist()} for row in rows])
    trainer = get_trainer(model, DatasetDict(train=rows, test=rows))
    assert trainer.evaluate()["eval_accuracy"] == 1.0


def rows(**columns):
    """Eight rows of three tokens and two classes, as `train` and `test`."""
    data = {"input_ids": [[1, 2, 3]] * 8, "label": [0, 1] * 4, **columns}
    split = Dataset.from_dict(data)
    return DatasetDict({"train": split, "test": split})


@pytest.mark.parametrize(
    "columns", [{"input_ids": [[1, 2, 9999]] * 8}, {"label": [0, 7] * 4}], ids=["token", "label"]
)
def test_rows_of_another_model_are_explained(columns):
    trainer = get_trainer(OfTokensOnly(), rows(**columns), **QUIET)
    with pytest.raises(ConfigError, match="rejects the rows .* with the tokenizer of this model"):
        trainer.evaluate()


def test_wrong_models_and_folders(tmp_path):
    file = tmp_path / "weights.pt"
    file.touch()
    with pytest.raises(ConfigError, match="is a file, expected a folder"):
        get_trainer(OfTokensOnly(), rows(), output_dir=file, **QUIET)
    with pytest.raises(ConfigError, match=r"got str; load a model by name with chop\.models"):
        get_trainer("bert-tiny", rows(), **QUIET)
    renamed = rows().rename_column("label", "target")
    with pytest.raises(ConfigError, match=r"label= of chop\.data\.load_dataset"):
        get_trainer(OfTokensOnly(), renamed, **QUIET)
    get_trainer(OfTokensOnly(), load_dataset(renamed, label="target"), **QUIET)
