import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.data import get_tokenized_dataset, load_dataset
from chop.errors import ConfigError
from chop.models import load_model
from chop.train import Metric, evaluate, fit, read_rows
from tests.export.decoders import SIZES, decoder


@pytest.fixture(scope="module")
def digits():
    splits = load_dataset("digits")
    return {name: read_rows(split) for name, split in splits.items()}


@pytest.fixture(scope="module")
def reviews():
    return get_tokenized_dataset("reviews", "bert-tiny", limit=200)


def plain():
    """Neither labels nor an output class: what a user brings from elsewhere."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize("make", [lambda: load_model("mlp"), lambda: load_model("cnn"), plain])
@pytest.mark.sampled(1)
def test_a_model_learns_digits(digits, make):
    model = make()
    before = evaluate(model, digits)
    losses = fit(model, digits, epochs=5, lr=5e-3)
    assert before < 0.3 < 0.9 < evaluate(model, digits)
    assert len(losses) == 5 and losses[-1] < 0.5 * losses[0]


def test_evaluate_agrees_with_a_loop_by_hand(digits):
    model = load_model("cnn")
    fit(model, digits, epochs=1, lr=3e-3)
    model.eval()
    pixels, labels = digits["test"].columns["pixel_values"], digits["test"].labels
    with torch.no_grad():
        expected = (model(pixels).logits.argmax(-1) == labels).float().mean().item()
    assert evaluate(model, digits, batch_size=7) == pytest.approx(expected)
    assert evaluate(model, digits["test"], batch_size=1000) == pytest.approx(expected)
    assert evaluate(model, digits, metric="f1") != pytest.approx(expected, abs=1e-9)


def test_one_step_is_adamw_on_a_clipped_gradient(digits):
    few = load_dataset("digits")["train"].select(range(8))
    model, twin = load_model("mlp"), load_model("mlp")
    settings = {"lr": 0.01, "weight_decay": 0.1, "max_grad_norm": 0.5, "batch_size": 8}
    fit(model, few, schedule="constant", warmup=0.0, **settings)
    rows = read_rows(few)
    twin(rows.columns["pixel_values"], rows.labels).loss.backward()
    nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
    matrices = [p for p in twin.parameters() if p.dim() > 1]
    vectors = [p for p in twin.parameters() if p.dim() == 1]
    torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
    ).step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["mlp", "bert-tiny"])
@pytest.mark.sampled(1)
def test_equal_seeds_give_equal_weights_and_global_generators_stay(digits, reviews, name):
    data = reviews if name == "bert-tiny" else digits

    def train(seed):
        model = load_model(name)
        fit(model, data, seed=seed)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    before = torch.get_rng_state()
    first = train(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert torch.equal(first, train(1))
    assert not torch.equal(first, train(2))


def test_dropout_draws_by_the_seed():
    x, y = torch.linspace(-1, 1, 64).expand(16, 64), torch.zeros(16, dtype=torch.long)

    def train(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10))
        fit(model, (x, y), seed=seed, batch_size=16)
        return model[1].weight.detach()

    # Rows are alike, so that no order tells one seed from another.
    assert torch.equal(train(1), train(1)) and not torch.equal(train(1), train(2))


def test_frozen_parameters_and_the_mode_stay(digits):
    model = load_model("cnn").eval()
    model.conv1.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    fit(model, digits["test"])
    after = model.state_dict()
    assert torch.equal(after["conv1.weight"], before["conv1.weight"])
    assert not torch.equal(after["fc.weight"], before["fc.weight"])
    assert not torch.equal(after["bn1.running_mean"], before["bn1.running_mean"])
    assert not model.training
    model.train()
    statistics = model.bn1.running_mean.clone()
    evaluate(model, digits)
    assert model.training and torch.equal(model.bn1.running_mean, statistics)


def test_every_module_keeps_its_own_mode(digits):
    model = load_model("cnn").train()
    model.bn1.eval()
    evaluate(model, digits)
    assert model.bn2.training and not model.bn1.training
    fit(model, digits["test"])
    assert model.bn2.training and not model.bn1.training
    with pytest.raises(ConfigError):
        evaluate(model, digits, metric="f2")
    assert model.bn2.training


def test_gradients_left_over_from_before_are_not_used(digits):
    clean, dirty = load_model("mlp"), load_model("mlp")
    for parameter in dirty.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    for model in (clean, dirty):
        fit(model, digits["test"])
    assert torch.equal(clean.fc1.weight, dirty.fc1.weight)
    assert dirty.fc1.weight.grad is None


def test_padding_changes_no_prediction(reviews):
    model = load_model("bert-tiny")
    assert evaluate(model, reviews, batch_size=1) == evaluate(model, reviews, batch_size=200)


def test_no_epoch_changes_nothing(digits):
    model = load_model("mlp")
    before = copy.deepcopy(model.state_dict())
    assert fit(model, digits, epochs=0) == []
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_bar_with_its_label_is_shown_on_request(digits, capsys):
    evaluate(load_model("mlp"), digits, progress="checking digits")
    assert "checking digits" in capsys.readouterr().out
    evaluate(load_model("mlp"), digits)
    assert capsys.readouterr().out == ""


def test_bad_arguments_are_named(digits):
    model = load_model("mlp")
    with pytest.raises(ConfigError, match="unknown schedule 'cosin': did you mean 'cosine'"):
        fit(model, digits, schedule="cosin")
    with pytest.raises(ConfigError, match="unknown metric 'f2'"):
        evaluate(model, digits, metric="f2")
    with pytest.raises(ConfigError, match="batch_size: expected a whole number, 1 or more, got 0"):
        fit(model, digits, batch_size=0)
    with pytest.raises(ConfigError, match="fit: unknown argument 'learning_rate'"):
        fit(model, digits, learning_rate=1e-3)
    with pytest.raises(ConfigError, match="forward takes .* but the data set has"):
        evaluate(load_model("bert-tiny"), digits)
    with pytest.raises(ConfigError, match="all parameters of the model are frozen"):
        fit(model.requires_grad_(False), digits)


@pytest.mark.parametrize(
    ("rows", "size", "used", "steps"), [(5, 2, 3, 2), (7, 2, 4, 2), (13, 4, 5, 3), (6, 4, 4, 2)]
)
def test_batch_norm_gets_no_batch_of_one_row(caplog, rows, size, used, steps):
    model, seen = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), []
    x, y = torch.randn(rows, 4), torch.arange(rows) % 2
    fit(model, (x, y), batch_size=size, epochs=2, on_step=lambda step, of: seen.append(of))
    assert seen == [2 * steps] * 2 * steps
    assert (f"batch_size is {used} instead of {size}" in caplog.text) == (used != size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inputs_get_the_dtype_of_the_model(dtype, caplog):
    model, x = nn.Linear(4, 2).to(dtype), torch.randn(16, 4)
    y = model(x.to(dtype)).argmax(1)
    assert evaluate(model, (x, y)) == 1.0
    fit(model, (x, y))
    assert f"inputs are converted to {dtype}" in caplog.text


def test_logits_that_are_not_the_first_output_are_reported(caplog):
    class Hidden(nn.Linear):
        def forward(self, x):
            logits = super().forward(x)
            return (logits.repeat(1, 3), logits) if self.is_hidden_first else (logits, x)

    model, x = Hidden(4, 2), torch.randn(16, 4)
    for model.is_hidden_first in (False, True):
        assert "Output 1 (from 0) has 2 numbers a row" not in caplog.text
        evaluate(model, (x, (x[:, 0] > 0).long()))
    assert "Output 1 (from 0) has 2 numbers a row" in caplog.text


@pytest.mark.parametrize("name", ["argmax", "softmax", "topk"])
def test_functions_of_logits_are_refused_in_metrics_of_classes(name):
    score = lambda p, labels: getattr(p, name)(-1)  # noqa: E731
    rows = torch.randn(8, 4), torch.arange(8) % 2
    with pytest.raises(ConfigError, match=f"{name} takes logits, .*shape .8,.*predict=lambda"):
        evaluate(nn.Linear(4, 2), rows, metric=score)
    accuracy = lambda p, labels: (p.argmax(-1) == labels).double().mean()  # noqa: E731
    metric = Metric("own", accuracy, predict=lambda logits, labels: logits)
    model = nn.Linear(4, 2)
    assert evaluate(model, rows, metric=metric) == evaluate(model, rows)


def test_a_wrapped_model_is_called_by_its_own_names():
    model, rows = nn.Linear(4, 2), (torch.randn(8, 4), torch.arange(8) % 2)
    assert evaluate(nn.DataParallel(model), rows) == evaluate(model, rows)


def test_labels_of_another_task_are_named_beyond_the_first_batch():
    rows = torch.randn(300, 4), torch.arange(300) % 2
    with pytest.raises(ConfigError, match="label 1.*1 number.*are of task 'binary'"):
        evaluate(nn.Linear(4, 1), rows)
    with pytest.raises(ConfigError, match="label 299.*1 number.*are of task 'regression'"):
        evaluate(nn.Linear(4, 1), (rows[0], torch.arange(300)))


def test_whole_numbers_for_a_model_of_floats_name_the_conversion():
    images, labels = torch.zeros(4, 1, 4, 4, dtype=torch.uint8), torch.arange(4) % 2
    model = nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten())
    with pytest.raises(ConfigError, match=r"pass input as float32.*Divide it by 255 if"):
        evaluate(model, (images, labels))
    with pytest.raises(ConfigError, match=r"such as X.float\(\), or for an array"):
        fit(nn.Linear(4, 2), (images[:, 0, 0].long(), labels))
    model[0].in_channels, model[0].kernel_size = 1, 4  # as an own layer may have them
    with pytest.raises(ConfigError, match="pass input as float32"):
        evaluate(model, (images, labels))


def test_large_logits_are_accumulated_over_parts_of_a_step(monkeypatch):
    vocabulary, trained, sizes = SIZES["vocab_size"], {}, {}
    ids = torch.randint(0, vocabulary, (11, 9), generator=torch.Generator().manual_seed(1))
    for limit in (2**28, 4 * vocabulary * 9 * 3):
        monkeypatch.setattr("chop.train.train_loop.STEP_LOGIT_BYTES", limit)
        model, steps, seen = decoder("Llama", tied=True), [], []
        head = model.get_output_embeddings()
        head.register_forward_hook(lambda module, args, out, seen=seen: seen.append(len(out)))
        rows = {"input_ids": ids, "labels": ids}
        own = {"batch_size": 4, "lr": 1e-3, "task": "causal-lm", "warmup": 0}
        losses = fit(model, rows, on_step=lambda *x, steps=steps: steps.append(x), epochs=2, **own)
        assert steps == [(step, 6) for step in range(1, 7)]
        trained[limit], sizes[limit] = (losses, list(model.parameters())), seen
    # Three rows fit, and the largest divisor of four among them is two.
    assert list(sizes.values()) == [[4, 4, 3] * 2, [2, 2, 2, 2, 2, 1] * 2]
    (whole, expected), (parts, found) = trained.values()
    assert parts == pytest.approx(whole, rel=1e-4)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=0)  # a tenth of a step


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs: expected a whole number, 0 or more, got -1"),
        ({"epochs": 1.5}, "epochs: .* got 1.5"),
        ({"lr": float("nan")}, "lr: expected a finite number, 0 or more, got nan"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number, 1 or more, got 2.5"),
        ({"batch_size": 0}, "batch_size: expected a whole number, 1 or more, got 0"),
        ({"lr": "0.1"}, "lr: expected a finite number, 0 or more, got '0.1'"),
        ({"weight_decay": -1}, "weight_decay: expected a finite number, 0 or more, got -1"),
        (
            {"max_grad_norm": None},
            "max_grad_norm: expected more than 0; math.inf for no limit, got",
        ),
        ({"warmup": 3}, "warmup: expected a share of the steps, 0 to 1, got 3"),
        ({"max_grad_norm": -1}, "max_grad_norm: expected more than 0"),
    ],
)
def test_numbers_out_of_range_are_refused_before_training(settings, message):
    net = nn.Linear(4, 2)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ConfigError, match=message):
        fit(net, (torch.ones(6, 4), torch.tensor([0, 1] * 3)), **settings)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("size", [0, 2.5, "8"])
def test_batch_sizes_of_an_evaluation(size):
    with pytest.raises(ConfigError, match=f"batch_size: expected a whole .* got {size!r}"):
        evaluate(nn.Linear(4, 2), (torch.ones(6, 4), torch.tensor([0, 1] * 3)), batch_size=size)


@pytest.mark.parametrize("use", [fit, evaluate])
def test_a_graph_instead_of_its_model_is_one_sentence(use):
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(ConfigError, match=r"got MaseGraph; pass its attribute model"):
        use(graph, (torch.ones(6, 4), torch.tensor([0, 1] * 3)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": "x"}, r"seed: expected a whole number from 0 to 2\^63 - 1, got 'x'"),
        ({"progress": True}, "progress: got True, expected a label of the bar"),
    ],
)
def test_a_seed_and_a_progress_of_another_type_are_named(wrong, message):
    with pytest.raises(ConfigError, match=message):
        fit(nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1])), **wrong)


def test_training_that_ends_worse_than_it_began_is_reported(caplog):
    torch.manual_seed(0)
    x = torch.randn(400, 4)
    rows = x, x[:, :3].argmax(1)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    for settings in ({"lr": 1e-2, "epochs": 20}, {"lr": 1e-5, "epochs": 2, "batch_size": 16}):
        fit(model, rows, **settings)
        assert not caplog.text
    for settings in ({"lr": 100.0, "epochs": 3}, {"lr": 100.0, "epochs": 3, "batch_size": 400}):
        fit(copy.deepcopy(model), rows, **settings)
        assert "the mean loss of the last epoch is" in caplog.text
        caplog.clear()
    pruning = {"on_step": lambda step, of: model[0].weight.data.zero_(), "batch_size": 400}
    assert fit(model, rows, epochs=3, **pruning)[-1] > 0.8 and not caplog.text
