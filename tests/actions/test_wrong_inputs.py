"""Models, rows and names that cannot be used are one sentence; other dtypes are converted."""

from pathlib import Path

import pytest
import torch
import transformers
from datasets import Dataset
from torch import nn

import chop
from chop import runs
from chop.actions.compress.earlier_run import compressed_run
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.starting_run import checkpoint_in
from chop.bench.peak_memory import peak_bytes
from chop.errors import CaptureError, CheckpointError, ChopError, ConfigError
from chop.models import read_config
from chop.train import evaluate, read_label_column
from chop.workloads.load import load_workload, workload_for
from chop.workloads.probe import check_weights
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


DOORS = {
    "MaseGraph": chop.MaseGraph,
    "chop.quantize": lambda model: chop.quantize(model, data=X),
    "chop.compress": lambda model: chop.compress(model, (X, Y)),
    "model": lambda model: Workload.of(model, (X, Y), (X, Y)),
}


@pytest.mark.parametrize("where", DOORS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "got None."),
        (nn.Linear, r"got the class Linear; pass an instance, Linear\(...\)."),
        (
            "runs/demo/model",
            r"got str; load a checkpoint by MaseGraph.from_checkpoint\(path\)",
        ),
        ("model.onnx", "got an ONNX model; pass the PyTorch model that it was exported from"),
        (lambda: chop.MaseGraph(nn.Linear(4, 2)), "got MaseGraph; .*\\(mg.model\\)."),
        (torch.relu, "got .*; pass the module that it belongs to"),
        ([nn.Linear(4, 2)], "got list."),
    ],
)
def test_what_is_no_model_is_one_sentence_at_every_door(where, given, message):
    given = given() if getattr(given, "__name__", "") == "<lambda>" else given
    if isinstance(given, chop.MaseGraph) and where == "chop.compress":
        message = "got a captured graph; pass the module that it was captured from"
    with pytest.raises(
        ConfigError, match=rf"^{where}: expected (an nn.M|the original m)odule, {message}"
    ):
        DOORS[where](given)


@pytest.mark.parametrize(
    ("given", "message"),
    [(None, "got nothing"), (3, r"got 3 \(int\)"), ("", "an empty text"), (nn.ReLU(), r"got ReLU")],
)
def test_a_checkpoint_that_is_no_path(given, message):
    with pytest.raises(ConfigError, match=rf"^checkpoint: .*{message}"):
        chop.MaseGraph.from_checkpoint(given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_rows_of_another_float_dtype_are_those_of_the_model(net, dtype):
    rows = (X.to(dtype), Y)
    workload = Workload.of(net, rows, rows)
    same = X.to(dtype).float()
    assert torch.equal(workload.test.columns["input 0"], same)
    assert workload.evaluate(workload.model, workload.test) == evaluate(net, (same, Y))
    assert chop.quantize(net, "8.auto", rows)(X).dtype == torch.float32


def pairs():
    return ((x, int(y)) for x, y in zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "rows", [pairs, lambda: ((x for x in X), Y), lambda: {"x": (x for x in X), "label": Y}]
)
def test_iterators_are_read_once(net, rows):
    workload = Workload.of(net, rows(), rows())
    assert len(workload.train) == len(workload.test) == len(X)
    assert isinstance(chop.quantize(net, "8.auto", rows()), nn.Sequential)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((X, Y + 0j), "labels: got complex numbers"),
        ((X + 0j, Y), "'Sequential' cannot take rows of 'own data', input complex64"),
        ((X[:, :3], Y), r"cannot take rows of 'own data', input float32 \(3, 3\)"),
        (iter(()), "got an empty or already consumed iterator"),
    ],
)
def test_rows_that_a_model_cannot_take(net, rows, message):
    with pytest.raises(ConfigError, match=message):
        Workload.of(net, rows, (X, Y))


class Pair(nn.Module):
    """Two inputs, of which the second is optional."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, picture, numbers=None, position_ids=None):
        return self.left(picture) + (0 if numbers is None else self.right(numbers))


@pytest.mark.parametrize("name", ["number", "Numbers"])
def test_a_misspelled_input_is_an_error(name):
    rows = {"picture": X, name: X, "labels": Y}
    message = f"'Pair' has no input '{name}': did you mean 'numbers'"
    with pytest.raises(ConfigError, match=message):
        Workload.of(Pair(), rows, rows)
    with pytest.raises(ConfigError, match=message):
        chop.quantize(Pair(), "8.auto", rows)


def test_a_failing_model_lists_the_columns_that_it_was_not_passed():
    rows = {"numbers": X, "scan": X, "labels": Y}
    message = r"argument: 'picture'\. .* No input has the name of the columns 'scan'\."
    with pytest.raises(ConfigError, match=message):
        Workload.of(Pair(), rows, rows)


def test_columns_that_resemble_no_input_are_skipped():
    others = {"idx": torch.arange(40), "position": torch.arange(40)}
    rows = {"picture": X, **others, "labels": Y}
    assert len(Workload.of(Pair(), rows, rows).train) == 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operators": "linear"}, "operators: expected a list of str, got 'linear'"),
        ({"calibration_rows": 0}, "calibration_rows: got 0"),
        ({"format": 8}, "format: expected a text such as '8.auto' or a number format, got 8"),
    ],
)
def test_settings_of_quantize(net, settings, message):
    with pytest.raises(ConfigError, match=message):
        chop.quantize(net, data=X, **settings)


@pytest.mark.parametrize(
    ("layer", "name", "count"), [(0, "weight", 1), (0, "bias", 8), (2, "weight", 16)]
)
def test_weights_that_are_nan_are_named_where_a_job_starts(net, layer, name, count, tmp_path):
    getattr(net[layer], name).data.flatten()[:count] = float("nan")
    config = CompressConfig(out=tmp_path, formats=("8.auto",), force=True)
    with pytest.raises(ConfigError, match=rf"have NaN: {layer}.{name} \({count} of \d+ numbers\)"):
        compress(config, Workload.of(net, (X, Y), (X, Y)))
    assert not [*tmp_path.iterdir()]


def test_looking_for_nan_takes_less_memory_than_the_weights():
    layer = nn.Linear(4096, 2048)
    peak = peak_bytes(lambda: check_weights(layer), torch.device("cpu"))
    assert peak is None or peak < layer.weight.nbytes


def test_infinite_weights_and_small_floats_are_no_gaps(net, tmp_path):
    net[0].bias.data[0] = -float("inf")
    net.register_buffer("small", torch.ones(2).to(torch.float8_e4m3fn))
    workload = Workload.of(net, (X, Y), (X, Y))
    assert workload_for(WorkloadConfig(out=tmp_path), workload).model is workload.model


@pytest.mark.parametrize("model", ["mlp", "net.py:Net", "./folder"])
@pytest.mark.parametrize(
    ("metric", "message"), [("acuracy", "did you mean 'accuracy'"), ("bleu", "choose from: acc")]
)
def test_a_metric_that_no_task_has_is_refused_before_anything_is_loaded(
    model, metric, message, tmp_path
):
    config = WorkloadConfig(model=model, dataset=None, metric=metric, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=f"unknown metric '{metric}': {message}"):
        load_workload(config)
    assert not config.out.exists()


@pytest.mark.parametrize(
    "labels",
    [["yes", "no"], [["O", "B"], ["B"]], [[["a"]], [["b"]]]],
    ids=["text", "words", "deep"],
)
def test_labels_that_are_texts_are_numbered_by_the_user(labels):
    table = Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": labels})
    with pytest.raises(ConfigError, match="label column 'labels': expected numbers, got .*-100"):
        read_label_column(table)


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 30}
FLEX = [("Llama", "ForCausalLM"), ("Bert", "ForSequenceClassification"), ("Qwen3", "Model")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("family", "head"), FLEX)
def test_flex_attention_is_named_with_the_way_out(family, head):
    config = getattr(transformers, f"{family}Config")(
        **SIZES, num_attention_heads=2, num_key_value_heads=2
    )
    kind = getattr(transformers, f"{family}{head}")
    model = kind._from_config(config, attn_implementation="flex_attention")
    with pytest.raises(CaptureError, match=r'is flex_attention, .* attn_implementation="sdpa"'):
        chop.MaseGraph(nn.Sequential(model) if head == "Model" else model)
    model.set_attn_implementation("sdpa")
    assert chop.MaseGraph(model).is_captured


def test_a_name_in_the_place_of_labels(net, tmp_path):
    with pytest.raises(ConfigError, match="got the text 'fraud'; pass the column"):
        chop.compress(net, (X, "fraud"), out=tmp_path)


def test_a_state_dict_is_no_model(net):
    with pytest.raises(ConfigError, match=r"model.load_state_dict\(weights\)"):
        chop.quantize(net.state_dict())


def test_a_run_of_another_command_says_what_it_is(tmp_path):
    with runs.start("search precision", {}, tmp_path):
        pass
    for read in (read_config, lambda name: compressed_run(Path(name))):
        with pytest.raises(ChopError, match="(is from|contains no model:) chop search precision"):
            read(str(tmp_path))


def test_rows_that_do_not_fit_come_with_the_assumptions_about_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 2)\n")
    lines = [f"{i},{'?' if i == 3 else i},{i},{i % 2}" for i in range(40)]
    Path("rows.csv").write_text("\n".join(["a,b,c,label", *lines]))
    config = WorkloadConfig(model="net.py:net", dataset="rows.csv")
    with pytest.raises(ConfigError, match="not used as inputs: b .39 of 40 .*one has '[?]'"):
        workload_for(config, None)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("missing", "found no such file or folder.$"),
        ("empty", "found none.$"),
        ("model.gguf", r"For a model of another kind, pass --model .*model.gguf.$"),
        ("mlp", r"found no such file or folder. For a model of another kind, pass --model mlp.$"),
        ("hub", r"For a model of another kind, pass --model .*hub.$"),
    ],
)
def test_a_start_that_is_no_checkpoint_names_what_it_is(name, cause, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "hub"):
        (tmp_path / folder).mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=cause):
        checkpoint_in(Path(name))
