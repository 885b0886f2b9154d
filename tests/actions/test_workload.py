"""What a job works on: models, tokenizers and rows, by name and from Python."""

import sys

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from chop.base.notices import collected_assumptions
from chop.data import get_tokenizer, load_dataset
from chop.errors import ChopError, ConfigError, UnavailableError
from chop.models import load_model
from chop.train import evaluate
from chop.workloads import load
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig, short_name


def bert(vocab_size=200):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocab_size, intermediate_size=16, num_labels=2, **sizes)
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, split in load_dataset("reviews", limit=12).items():
        split.to_parquet(folder / f"{name}.parquet")
    return folder


def config_of(model, data, out, **settings):
    return WorkloadConfig(model=str(model), dataset=str(data), out=out / "out", **settings)


# --- tokenizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, shown",
    [
        ("vit", "vit"),
        ("org/bert-tiny", "org/bert-tiny"),
        ("timm:resnet18", "timm:resnet18"),
        ("{}/net.py:Net", "net.py:Net"),
        ("{}/my-bert/", "my-bert"),
        ("../my-bert", "my-bert"),
        ("./data/rows.csv", "rows.csv"),
        ("~/models/net.py:make", "net.py:make"),
        ("own data", "own data"),
    ],
)
def test_titles_have_the_last_component_of_a_path(name, shown, tmp_path):
    assert short_name(name.format(tmp_path)) == shown


def test_a_model_folder_without_a_tokenizer_is_refused(texts, tmp_path):
    bert().save_pretrained(tmp_path)
    with pytest.raises(UnavailableError, match="no tokenizer found; .*--tokenizer") as caught:
        load_workload(config_of(tmp_path, texts, tmp_path))
    assert "\n" not in str(caught.value)


def test_the_tokenizer_may_be_elsewhere(texts, tmp_path):
    bert().save_pretrained(tmp_path / "model")
    get_tokenizer("reviews").save_pretrained(tmp_path / "words")
    apart = load_workload(
        config_of(tmp_path / "model", texts, tmp_path, tokenizer=str(tmp_path / "words"))
    )
    get_tokenizer("reviews").save_pretrained(tmp_path / "model")
    within = load_workload(config_of(tmp_path / "model", texts, tmp_path))
    ids = [workload.test.columns["input_ids"] for workload in (apart, within)]
    assert all(torch.equal(a, b) for a, b in zip(*ids, strict=True))
    assert max(int(row.max()) for row in ids[0]) > 100


@pytest.mark.parametrize("vocab_size", [100, 5000], ids=["too small", "too large"])
def test_a_tokenizer_of_another_model_is_refused(texts, tmp_path, vocab_size):
    bert(vocab_size).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"157 tokens .*vocabulary has {vocab_size:,};"):
        load_workload(config_of(tmp_path, texts, tmp_path, tokenizer="reviews"))


# --- data ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model that numbers its classes against the alphabet, with a tokenizer."""
    folder, model = tmp_path_factory.mktemp("words"), bert()
    model.config.id2label = {0: "POS", 1: "NEG"}
    model.config.label2id = {"POS": 0, "NEG": 1}
    model.save_pretrained(folder)
    get_tokenizer("reviews").save_pretrained(folder)
    return folder


def as_csv(split, path, **names):
    texts = split["text"][:]
    told = [["neg", "pos"][label] for label in split["label"][:]]
    Dataset.from_dict({names["text"]: texts, names["label"]: told, "id": [1] * len(told)}).to_csv(
        path
    )


def test_a_csv_file_whose_labels_are_text(words, tmp_path):
    rows = load_dataset("reviews", limit=20)["train"]
    as_csv(rows, tmp_path / "rows.csv", text="body", label="mood")
    columns = {"text_column": "body", "label_column": "mood"}
    workload = load_workload(config_of(words, tmp_path / "rows.csv", tmp_path, **columns))
    tokenizer = get_tokenizer(str(words))
    told = {
        tuple(tokenizer(text)["input_ids"]): label
        for text, label in zip(rows["text"], rows["label"], strict=True)
    }
    seen = [told[tuple(ids.tolist())] for ids in workload.test.columns["input_ids"]]
    assert workload.test.labels.tolist() == [1 - label for label in seen] and len(seen) == 4


def test_saved_data_sets_are_read_with_or_without_splits(words, tmp_path):
    splits = load_dataset("reviews", limit=20)
    splits.save_to_disk(tmp_path / "splits")
    splits["train"].save_to_disk(tmp_path / "rows")
    both = load_workload(config_of(words, tmp_path / "splits", tmp_path))
    one = load_workload(config_of(words, tmp_path / "rows", tmp_path))
    assert len(both.test) == 20 and len(one.test) == 4
    flipped = [1 - label for label in splits["test"]["label"]]  # as the model numbers them
    assert both.test.labels.tolist() == flipped


def test_a_head_with_more_classes_than_the_labels_show_stays(tmp_path):
    model = bert()
    model.config.num_labels = 4
    model = type(model)(model.config).eval()
    model.save_pretrained(tmp_path / "model")
    get_tokenizer("reviews").save_pretrained(tmp_path / "model")
    rows = {"text": ["the cast", "dull", "great", "bad"] * 3, "label": [0, 1, 2, 0] * 3}
    Dataset.from_dict(rows).to_parquet(tmp_path / "train.parquet")
    workload = load_workload(config_of(tmp_path / "model", tmp_path / "train.parquet", tmp_path))
    assert torch.equal(workload.model.classifier.weight, model.classifier.weight)


def test_a_folder_of_pictures(net, tmp_path):
    digits = load_dataset("digits")
    for split, rows in digits.items():
        labels = rows["labels"][:].tolist()
        digits[split] = rows = rows.select([labels.index(digit) for digit in range(10)])
        for i, row in enumerate(rows):
            folder = tmp_path / "pictures" / split / f"class-{int(row['labels'])}"
            folder.mkdir(parents=True, exist_ok=True)
            gray = ((row["pixel_values"][0] + 1) * 8 * 15).byte().numpy()
            Image.fromarray(gray).save(folder / f"{i}.png")
    workload = load_workload(
        config_of(
            f"{net}:Net", tmp_path / "pictures", tmp_path, weights=str(net.with_suffix(".pt"))
        )
    )
    pixels = torch.stack([row["pixel_values"] for row in digits["test"]])
    read = workload.test.columns["pixel_values"]
    order = [(read - (row + 1) * 120 / 255).abs().flatten(1).amax(1).argmin() for row in pixels]
    order = torch.stack(order)
    torch.testing.assert_close(read[order], (pixels + 1) * 120 / 255)
    expected = [int(row["labels"]) for row in digits["test"]]
    assert workload.test.labels[order].tolist() == expected


# --- models --------------------------------------------------------------------------------------

NET = """
import torch
from neighbor import WIDTH


class Net(torch.nn.Module):
    default_cfg = {"input_size": (1, 8, 8), "mean": (0.0,), "std": (1.0,)}

    def __init__(self, classes=10):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WIDTH, classes))

    def forward(self, x):
        return self.layers(x)


class Needs(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)


def made():
    return Line()


class Line(torch.nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, 1)


class Sized(Line):
    def __init__(self, width):
        super().__init__(width)


number = 3
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(NET)
    path.with_name("neighbor.py").write_text("WIDTH = 64\n")
    wrapped = {f"module.layers.1.{k}": v for k, v in WEIGHTS.items()}
    torch.save({"state_dict": wrapped}, path.with_suffix(".pt"))
    save_file({f"layers.1.{k}": v for k, v in WEIGHTS.items()}, path.with_suffix(".safetensors"))
    return path


WEIGHTS = {"weight": torch.arange(640.0).view(10, 64) / 640, "bias": torch.arange(10.0)}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_of_a_file_with_its_weights(net, suffix):
    model = load_model(f"{net}:Net", weights=net.with_suffix(suffix))
    assert torch.equal(model.layers[1].weight, WEIGHTS["weight"]) and not model.training
    assert load_model(f"{net}:Needs", num_labels=3).layers[1].out_features == 3
    assert load_model(f"{net}:made").out_features == 1
    assert load_model(f"{net}:Net", num_labels=3).layers[1].out_features == 10


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("{net}:Nte", {}, "has no 'Nte': did you mean 'Net'"),
        ("{net}:Sized", {}, "needs width: name a function without arguments"),
        ("{net}:number", {}, "expected a torch.nn.Module, got int"),
        ("{net.parent}/nte.py:Net", {}, "model file '.*nte.py' does not exist"),
        ("{net.parent}/broken.py:Net", {}, "cannot be run: line 1 raises ZeroDivisionError: "),
        ("{net}:Net", {"weights": "none.pt"}, "weights 'none.pt': there is no such file"),
        ("{net}:Net", {"weights": "none.safetensors"}, "weights 'none.safetensors': there is no"),
        ("{net}:Net", {"weights": "{net.parent}/code.pt"}, "expected only tensors"),
        ("{net}:Net", {"weights": "{net.parent}/torn.pt"}, "torn.pt"),
        (
            "{net}:Line",
            {"weights": "{net.parent}/net.pt"},
            "does not fit the model Line: of another shape bias, weight",
        ),
        ("mlp", {"weights": "x.pt"}, "weights: 'mlp' has its own"),
        ("timm:resnet18", {}, "needs the package timm: pip install "),
    ],
)
def test_models_that_cannot_be_built_are_one_sentence(net, name, settings, message, monkeypatch):
    (net.parent / "broken.py").write_text("1 / 0")
    (net.parent / "torn.pt").write_bytes(net.with_suffix(".pt").read_bytes()[:300])
    torch.save(test_a_head_with_more_classes_than_the_labels_show_stays, net.parent / "code.pt")
    monkeypatch.setitem(sys.modules, "timm", None)
    settings = {key: value.format(net=net) for key, value in settings.items()}
    with pytest.raises(ChopError, match=message) as caught:
        load_model(name.format(net=net), **settings)
    assert "\n" not in str(caught.value)


def test_models_of_timm(net, tmp_path, monkeypatch):
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text(
        f"""
import sys
sys.path.insert(0, {str(net.parent)!r})
from net import Net

def is_model(name):
    return name == "tiny"

def list_models():
    return ["tiny"]

def create_model(name, pretrained, num_classes=10):
    if pretrained:
        raise ConnectionError("no route to host")
    return Net(num_classes)
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    model = load_model("timm:tiny", weights=net.with_suffix(".pt"))
    assert torch.equal(model.layers[1].weight, WEIGHTS["weight"])
    assert load_model("timm:tiny", num_labels=3, pretrained=False).layers[1].out_features == 3
    with pytest.raises(ConfigError, match="timm has no model 'tniy': did you mean 'tiny'"):
        load_model("timm:tniy")
    with pytest.raises(UnavailableError, match=r"cannot be fetched \(no route .* --weights FILE"):
        load_model("timm:tiny")
    sys.modules.pop("timm"), sys.modules.pop("net")


# --- tasks ---------------------------------------------------------------------------------------


def test_a_table_of_numbers_is_a_regression(net, tmp_path):
    x, weight = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), torch.rand(1, 4)
    y = (torch.from_numpy(x) @ weight.T)[:, 0].numpy()
    columns = {name: x[:, i] for i, name in enumerate("abcd")}
    Dataset.from_dict({**columns, "price": y}).to_csv(tmp_path / "rows.csv")
    torch.save({"weight": weight, "bias": torch.zeros(1)}, tmp_path / "line.pt")
    settings = {"label_column": "price", "weights": str(tmp_path / "line.pt")}
    workload = load_workload(config_of(f"{net}:Line", tmp_path / "rows.csv", tmp_path, **settings))
    assert workload.task.name == "regression" and workload.chance is None
    assert evaluate(workload.model, workload.test, task=workload.task) == pytest.approx(1.0)
    mse = load_workload(
        config_of(f"{net}:Line", tmp_path / "rows.csv", tmp_path, metric="mse", **settings)
    )
    assert mse.task.metric.name == "mse" and not mse.task.metric.higher_is_better


def test_a_checkpoint_is_fine_tuned_for_numbers(words, tmp_path):
    rows = load_dataset("reviews", limit=20)["train"]
    scores = [len(text) / 100 for text in rows["text"]]
    Dataset.from_dict({"text": rows["text"][:], "label": scores}).to_parquet(
        tmp_path / "train.parquet"
    )
    workload = load_workload(config_of(words, tmp_path / "train.parquet", tmp_path, train_epochs=1))
    assert workload.task.name == "regression"
    assert workload.model.classifier.out_features == 1
    assert workload.test.labels.dtype == torch.float32 and len(workload.test) == 4


def test_texts_without_labels_are_for_language_models(tmp_path):
    tokenizer = get_tokenizer("reviews")
    tokenizer.save_pretrained(tmp_path / "model")
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=200, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    rows = load_dataset("reviews", limit=12)["train"]
    rows.remove_columns("label").to_parquet(tmp_path / "train.parquet")
    workload = load_workload(config_of(tmp_path / "model", tmp_path / "train.parquet", tmp_path))
    assert workload.task.name == "causal-lm"
    assert all(
        torch.equal(ids, labels)
        for ids, labels in zip(
            workload.test.columns["input_ids"], workload.test.labels, strict=True
        )
    )
    assert 150 < evaluate(workload.model, workload.test, task=workload.task) < 260  # 200 tokens
    labeled = tmp_path / "labeled.parquet"
    rows.to_parquet(labeled)
    asked = load_workload(config_of(tmp_path / "model", labeled, tmp_path, task="causal-lm"))
    assert [len(ids) for ids in asked.train.labels] == [len(ids) for ids in workload.train.labels]
    book = tmp_path / "book.txt"
    book.write_text("\n".join(rows["text"]), encoding="utf-8")
    settings = {"max_length": 16, "stride": 4, "limit": 2}
    running = load_workload(config_of(tmp_path / "model", book, tmp_path, **settings))
    assert running.task.name == "causal-lm"
    assert running.test.labels[1][:12].tolist() == [-100] * 12
    assert len(running.train) + len(running.validation) == len(running.test) == 2


@pytest.mark.parametrize("max_length", [16, 24])
def test_texts_beyond_the_positions_of_a_model_are_an_assumption(max_length, tmp_path):
    get_tokenizer("reviews").save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(
        vocab_size=200, num_attention_heads=2, max_position_embeddings=16, bos_token_id=0, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    (tmp_path / "book.txt").write_text("one word and another\n" * 60, encoding="utf-8")
    settings = config_of(
        tmp_path / "model", tmp_path / "book.txt", tmp_path, max_length=max_length, limit=4
    )
    with collected_assumptions() as assumed:
        load_workload(settings)
    named = [each.text for each in assumed if "16 positions" in each.text]
    assert len(named) == (max_length > 16)


def test_the_built_in_decoder_is_a_language_model(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "load_trained", lambda name, **_: load_model(name))
    settings = {"model": "gpt-tiny", "out": tmp_path, "limit": 8}
    workload = load_workload(WorkloadConfig(task="causal-lm", **settings))
    assert workload.task.name == "causal-lm" and len(workload.test) == 8
    assert evaluate(workload.model, workload.test, task=workload.task) > 50
    with pytest.raises(
        ConfigError, match="task: leave it out, since built-in model 'gpt-tiny' has"
    ):
        load_workload(WorkloadConfig(task="classification", **settings))


def test_words_with_a_label_each(tmp_path):
    config = bert().config
    config.num_labels = 3
    BertForTokenClassification(config).save_pretrained(tmp_path / "model")
    get_tokenizer("reviews").save_pretrained(tmp_path / "model")
    rows = {"tokens": [["the", "cast", "zq"], ["dull"]] * 5, "tags": [[0, 1, 2], [1]] * 5}
    Dataset.from_dict(rows).to_parquet(tmp_path / "train.parquet")
    settings = {"label_column": "tags"}
    workload = load_workload(
        config_of(tmp_path / "model", tmp_path / "train.parquet", tmp_path, **settings)
    )
    assert workload.task.name == "token-classification"
    told = {tuple(labels.tolist()) for labels in workload.train.labels}
    assert told == {(-100, 0, 1, 2, -100, -100), (-100, 1, -100)}
    assert 0 <= evaluate(workload.model, workload.test, task=workload.task) <= 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"task": "regresion"}, "did you mean 'regression'"),
        ({"task": "regression", "metric": "f1"}, "unknown metric 'f1'"),
        (
            {"label_column": "mood"},
            "label_column: leave it out, since built-in model 'mlp'",
        ),
    ],
)
def test_settings_of_tasks_are_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_workload(WorkloadConfig(model="mlp", **settings))


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("rows.csv", {}, "its columns are 'body', 'mood', 'id'; .*--label-column"),
        ("rows.csv", {"label_column": "mood", "text_column": "bdy"}, "--text-column"),
        ("rows.xlsx", {}, r"rows.xlsx': expected one of .csv.*, a folder of images [^;]*\.$"),
        (
            "rows.npz",
            {},
            r"expected one of .csv.*chop.compress\(model, \(X, y\)\).*a column 'labels'",
        ),
        ("arrays", {}, r"arrays' contains no data set.*chop.compress\(model, \(X, y\)\)"),
        ("none.npz", {}, r"none.npz' does not exist: expected one of .csv.*\(X, y\)"),
        ("torn.json", {}, "torn.json' cannot be read as json"),
    ],
)
@pytest.mark.sampled(3)
def test_data_that_cannot_be_read_is_one_sentence(words, tmp_path, name, settings, message):
    rows = load_dataset("reviews", limit=5)["train"]
    as_csv(rows, tmp_path / "rows.csv", text="body", label="mood")
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    np.savez(tmp_path / "rows.npz", X=[[1.0]], y=[0])
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "X.npy", [1.0])
    (tmp_path / "torn.json").write_text('{"text": ')
    with pytest.raises(ConfigError, match=message) as caught:
        load_workload(config_of(words, tmp_path / name, tmp_path, **settings))
    assert "\n" not in str(caught.value)
