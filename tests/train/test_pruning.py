"""Pruning during training: what is hidden when, and that it stays hidden."""

import pytest
import torch
from transformers import TrainerCallback

from chop import MaseGraph, passes
from chop.data import load_dataset
from chop.errors import ConfigError, GraphError
from chop.models import load_model
from chop.train import GradualPruning, evaluate, fit, get_trainer, read_rows


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", limit=320)


def graph():
    return MaseGraph(load_model("mlp"))


def masks(pruning):
    return [target.modules[0].weight_mask.clone() for target in pruning.targets]


class Watch:
    """Remembers sparsities, and that no hidden weight came back."""

    def __init__(self, pruning):
        self.pruning, self.seen, self.masks = pruning, [], masks(pruning)

    def __call__(self, step, steps):
        self.pruning(step, steps)
        now = masks(self.pruning)
        assert all((later <= earlier).all() for later, earlier in zip(now, self.masks, strict=True))
        self.masks = now
        self.seen.append(self.pruning.report()["sparsity"])


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("method", ["l1-norm", "random", "movement", "snip"])
@pytest.mark.sampled(1)
def test_masks_grow_to_the_exact_share(digits, method, scope):
    mg = graph()
    config = {"weight": {"sparsity": 0.7, "method": method, "scope": scope}}
    watch = Watch(GradualPruning(mg, config, every=3))
    assert watch.pruning.report()["hidden"] == 0
    fit(mg.model, digits, epochs=2, batch_size=32, on_step=watch)
    assert len(watch.seen) == 20 and watch.seen == sorted(watch.seen)
    report = watch.pruning.report()
    exact = [round(0.7 * t.weight.numel()) for t in watch.pruning.targets]
    assert report["hidden"] == (round(0.7 * report["weights"]) if scope == "global" else sum(exact))
    # 16 is the first step at or after the end, 0.8 of 20
    assert watch.seen[14] < watch.seen[15] == watch.seen[-1]


def test_the_cubic_schedule_is_that_of_the_paper(digits):
    mg = graph()
    pruning = GradualPruning(mg, {"weight": {"sparsity": 0.8}}, begin=0.2, end=0.7, every=1)
    watch = Watch(pruning)
    for step in range(1, 101):
        watch(step, 100)
    first, last, initial, final = 20, 70, 0.0, 0.8
    for step in range(1, 101):
        t = min(max(step, first), last)
        expected = final + (initial - final) * (1 - (t - first) / (last - first)) ** 3
        assert watch.seen[step - 1] == pytest.approx(expected, abs=1e-3), step


def test_the_constant_schedule_prunes_once():
    mg = graph()
    watch = Watch(GradualPruning(mg, {"weight": {"sparsity": 0.5}}, schedule="constant", begin=0.3))
    for step in range(1, 101):
        watch(step, 100)
    assert watch.seen[38] == 0 and watch.seen[39] == watch.seen[-1] == 0.5
    direct, _ = passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5}})
    assert torch.equal(mg.modules["fc2"].weight_mask, direct.modules["fc2"].weight_mask)


def test_the_trainers_callback_does_the_same(digits):
    mg = graph()
    pruning = GradualPruning(mg, {"weight": {"sparsity": 0.6, "scope": "global"}}, every=2)
    trainer = get_trainer(mg.model, digits, num_train_epochs=1, train_batch_size=32)
    callback = pruning.callback()
    assert isinstance(callback, TrainerCallback)
    trainer.add_callback(callback)
    trainer.train()
    assert pruning.report()["hidden"] == round(0.6 * 8832)
    hidden = ~mg.modules["fc1"].weight_mask
    assert hidden.any() and (mg.modules["fc1"].effective("weight")[hidden] == 0).all()


@pytest.mark.long
def test_pruning_while_training_beats_pruning_after(digits):
    rows = {name: read_rows(split) for name, split in load_dataset("digits").items()}
    mg = graph()
    config = {"weight": {"sparsity": 0.93, "scope": "global"}}
    fit(mg.model, rows, epochs=12, lr=5e-3, on_step=GradualPruning(mg, config))
    plain = graph()
    fit(plain.model, rows, epochs=12, lr=5e-3)
    after, info = passes.prune_transform_pass(plain, config)
    assert info["sparsity"] == pytest.approx(0.93, abs=1e-3)
    assert evaluate(after.model, rows) + 0.1 < evaluate(mg.model, rows) > 0.9


@pytest.mark.parametrize(
    ("weight", "settings", "message"),
    [
        ({"sparsity": 0.5, "method": "wanda"}, {}, "looks at inputs"),
        ({"granularity": "2:4"}, {}, "expected granularity 'elementwise', got '2:4'"),
        ({"sparsity": 0.5}, {"schedule": "cubik"}, "did you mean 'cubic'"),
        ({"sparsity": 0.5}, {"begin": 0.9}, "0 <= begin < end <= 1"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(weight, settings, message):
    with pytest.raises(ConfigError, match=message):
        GradualPruning(graph(), {"weight": weight}, **settings)


def test_what_is_no_graph_or_no_config_is_refused():
    with pytest.raises(GraphError, match="GradualPruning: expected a MaseGraph, got DigitsMLP"):
        GradualPruning(graph().model, {"weight": {"sparsity": 0.5}})
    with pytest.raises(ConfigError, match="expected 'weight'"):
        GradualPruning(graph(), None)
    with pytest.raises(ConfigError, match="expected a mapping, got 0.5"):
        GradualPruning(graph(), 0.5)
