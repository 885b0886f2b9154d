"""Pruning during training: what is hidden when, and that it stays hidden."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as oracle
from transformers import TrainerCallback

from chop import MaseGraph, passes
from chop.data import load_dataset
from chop.errors import ConfigError, GraphError
from chop.models import load_model
from chop.train import GradualPruning, fit, get_trainer


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("weight", "settings", "message"),
    [
        ({"sparsity": 0.5, "method": "wanda"}, {}, "needs layer inputs"),
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


METHODS = ["l1-norm", "random", "movement", "snip"]
X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def small_graph(prepare=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    if prepare is not None:
        prepare(net)
    return MaseGraph(net, dummy_in={"input": X})


class Run:
    """A training with momentum and pruning, whose state can be handed to another run."""

    def __init__(self, mg, method, before=None):
        self.mg = mg
        config = {"weight": {"sparsity": 0.8, "method": method}}
        self.pruning = GradualPruning(mg, config, every=2)
        self.optimizer = torch.optim.SGD(mg.model.parameters(), lr=0.05, momentum=0.9)
        if before is not None:
            self.optimizer.load_state_dict(copy.deepcopy(before.optimizer.state_dict()))

    def train(self, first, last, steps=20):
        self.mg.model.train()
        for step in range(first, last + 1):
            self.optimizer.zero_grad()
            self.mg.model(X).square().mean().backward()
            self.pruning(step, steps)
            self.optimizer.step()
        return self

    def assert_equals(self, other):
        state, expected = self.mg.model.state_dict(), other.mg.model.state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)
        assert self.pruning.report() == other.pruning.report()


def from_file(mg, folder):
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stopped_at", [5, 10, 17])
def test_a_resumed_schedule_ends_as_an_unbroken_one(method, stopped_at, tmp_path):
    unbroken = Run(small_graph(), method).train(1, stopped_at)
    state = copy.deepcopy(unbroken.mg.model.state_dict())
    loaded = Run(small_graph(), method, unbroken)
    loaded.mg.model.load_state_dict(state)
    read = from_file(unbroken.mg, tmp_path)
    before = read.model(X)
    resumed = [loaded, Run(read, method, unbroken), Run(unbroken.mg.copy(), method, unbroken)]
    assert torch.equal(read.model(X), before)  # no mask came off
    unbroken.train(stopped_at + 1, 20)
    for run in resumed:
        run.train(stopped_at + 1, 20).assert_equals(unbroken)
    assert unbroken.pruning.report()["sparsity"] == pytest.approx(0.8, abs=2e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["random", "movement"])
def test_a_trainer_resumes_in_the_middle_of_the_schedule(digits, method, tmp_path):
    def trained(**given):
        mg = graph()
        pruning = GradualPruning(mg, {"weight": {"sparsity": 0.7, "method": method}}, every=2)
        trainer = get_trainer(
            mg.model,
            digits,
            output_dir=tmp_path,
            train_batch_size=32,
            save_strategy="steps",
            save_steps=4,
            save_total_limit=3,
        )
        trainer.add_callback(pruning.callback())
        trainer.train(**given)
        return mg.model.state_dict()

    unbroken = trained()
    resumed = trained(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert all(torch.equal(x, unbroken[name]) for name, x in resumed.items())


def masked_by_torch(net):
    oracle.l1_unstructured(net[0], "weight", 0.3)
    oracle.ln_structured(net[2], "weight", 0.25, n=2, dim=0)
    oracle.l1_unstructured(net[2], "weight", 0.25)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
def test_masks_that_are_there_stay_and_count(method):
    mg = small_graph(masked_by_torch)
    masks = {n: mg.modules[n].weight_mask.bool() for n in ("0", "2")}
    run = Run(mg, method).train(1, 20)
    for name, kept in masks.items():
        layer = run.mg.modules[name]
        assert not (layer.weight_mask & ~kept).any() and (layer.weight[~kept] == 0).all()
        assert int((~layer.weight_mask).sum()) == round(0.8 * kept.numel())


def test_more_masks_than_asked_for_stay_with_a_warning():
    mg, _ = passes.prune_transform_pass(small_graph(), {"weight": {"sparsity": 0.9}})
    before = {n: mg.modules[n].weight_mask.clone() for n in ("0", "2", "4")}
    with pytest.warns(UserWarning, match="masked already, and the settings ask for"):
        run = Run(mg, "l1-norm").train(1, 20)
    assert all(torch.equal(run.mg.modules[n].weight_mask, x) for n, x in before.items())


def test_gradients_of_frozen_weights_are_not_waited_for():
    mg, _ = passes.insert_lora_adapter_transform_pass(small_graph(), {"rank": 2})
    with pytest.raises(ConfigError, match="needs gradients, and the weight of '0' is frozen"):
        Run(mg.copy(), "movement")
    run = Run(mg, "l1-norm").train(1, 20)
    assert (mg.modules["0"].weight[~mg.modules["0"].weight_mask] == 0).all()
    assert run.pruning.report()["layers"]["2"] == pytest.approx(0.8, abs=2e-3)


def test_the_sums_of_a_schedule_leave_with_the_masks():
    mg = small_graph()
    Run(mg, "movement").train(1, 20)
    assert "weight_saliency" in mg.modules["0"].state_dict()
    thin, _ = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "granularity": "channel"}, "include": ["0"]}
    )
    assert thin.modules["2"].weight_saliency.shape == thin.modules["2"].weight.shape == (16, 8)
    plain, _ = passes.prune_detach_hook_transform_pass(mg)
    assert list(plain.modules["0"].state_dict()) == ["weight", "bias"]
    assert torch.equal(plain.model(X), mg.model(X))


def test_a_state_without_sums_begins_them_anew():
    mg, other = small_graph(), small_graph()
    Run(mg, "l1-norm").train(1, 10)
    run = Run(other, "snip")
    other.model.load_state_dict(mg.model.state_dict())
    assert run.train(11, 20).pruning.report()["sparsity"] == pytest.approx(0.8, abs=2e-3)
