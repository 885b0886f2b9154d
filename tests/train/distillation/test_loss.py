"""Training against a teacher."""

import copy
import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from chop import MaseGraph, passes
from chop.base.notices import collected_assumptions
from chop.data import get_tokenized_dataset
from chop.errors import ConfigError
from chop.models import load_model
from chop.nn.quantized import QuantizedOperator
from chop.train import TASKS, Distillation, fit, read_rows
from chop.train.distillation import teacher
from chop.train.distillation.hidden_states import HiddenStates
from chop.train.feed import Feed
from chop.train.metric import Metric, values
from chop.train.task import Task
from chop.train.tasks import JUDGED_TASK

X, Y = torch.randn(48, 8, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3
STEP = {"batch_size": 48, "schedule": "constant", "warmup": 0.0, "weight_decay": 0.0}


def net(seed=0, outputs=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs))


def weights(model):
    return torch.cat([x.detach().flatten() for x in model.parameters()])


def train(data=(X, Y), student=None, **settings):
    student = net(1) if student is None else student
    losses = fit(student, data, **{"epochs": 2, "batch_size": 16, "lr": 1e-2, **settings})
    return losses, weights(student)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_one_step_is_that_of_a_loop_by_hand(alpha):
    goal, twin = net(), net(1).eval()
    student = net(1)
    student[2].p = 0.0
    given = {"teacher": goal, "alpha": alpha, "temperature": 2.0}
    losses = fit(student, (X, Y), lr=0.01, distill=given, **STEP)
    with torch.no_grad():
        target = (goal.eval()(X) / 2).softmax(-1)
    out = twin(X)
    soft = F.kl_div((out / 2).log_softmax(-1), target, reduction="batchmean")
    loss = (1 - alpha) * F.cross_entropy(out, Y) + alpha * 4 * soft
    loss.backward()
    nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0).step()
    assert losses == [pytest.approx(loss.item(), rel=1e-5)]
    torch.testing.assert_close(weights(student), weights(twin), atol=1e-6, rtol=0)


def test_alpha_0_trains_as_without_a_teacher():
    losses, mine = train(distill={"teacher": net(), "alpha": 0})
    others, theirs = train()
    assert losses == others and torch.equal(mine, theirs)


def test_equal_seeds_give_equal_weights_and_the_teacher_and_generators_stay():
    goal = net().train()
    before, state = copy.deepcopy(goal.state_dict()), torch.get_rng_state()
    _, first = train(distill=goal, student=(student := net(1)))
    torch.rand(3)
    again = train(distill=goal)[1]
    assert torch.equal(first, again) and not torch.equal(first, train(distill=goal, seed=1)[1])
    assert goal.training and all(torch.equal(goal.state_dict()[n], x) for n, x in before.items())
    assert all(x.grad is None and x.requires_grad for x in goal.parameters())
    assert student.training and not any(x._forward_hooks for x in student.modules())
    torch.set_rng_state(state)


def test_answers_that_do_not_fit_in_memory_are_computed_in_each_step(monkeypatch):
    calls = []
    goal = net()
    goal.register_forward_hook(lambda *_: calls.append(1))
    stored = train(distill=goal, epochs=3)[1]
    assert len(calls) == 3  # batches of 16 of 48 rows, once
    calls.clear()
    monkeypatch.setattr(teacher, "STORED_BYTES", 4 * 3 * 20)
    each = train(distill=goal, epochs=3)[1]
    assert len(calls) == 1 + 9
    torch.testing.assert_close(each, stored, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def texts():
    return read_rows(get_tokenized_dataset("reviews", "bert-tiny", limit=24)["train"])


def test_stored_answers_to_tokens_are_those_of_each_step(monkeypatch, texts):
    config = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    goal = BertForTokenClassification(
        BertConfig(vocab_size=2000, num_hidden_layers=1, num_labels=3, **config)
    ).eval()
    inputs = {name: texts.columns[name] for name in ("input_ids", "attention_mask")}
    assert isinstance(inputs["input_ids"], list)  # of different lengths

    def trained():
        torch.manual_seed(1)
        student = copy.deepcopy(goal)
        nn.init.normal_(student.classifier.weight)
        losses = fit(student, inputs, distill=goal, batch_size=5, epochs=2, lr=1e-3)
        return losses, weights(student)

    stored = trained()
    monkeypatch.setattr(teacher, "STORED_BYTES", 0)
    each = trained()
    assert stored[0][0] > 0.01 and stored[0] == pytest.approx(each[0], rel=1e-4)
    torch.testing.assert_close(stored[1], each[1], atol=1e-4, rtol=0)


def test_padding_has_no_part_in_the_loss():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    goal, student = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config)
    ids = [torch.randint(30, (n,)) for n in (3, 7, 5)]
    rows = {"input_ids": ids, "attention_mask": [torch.ones(len(x)).long() for x in ids]}
    twin = copy.deepcopy(student).eval()
    given = {"teacher": goal, "alpha": 1}
    (loss,) = fit(student, rows, distill=given, task="causal-lm", lr=1e-9)
    with torch.no_grad():
        parts = [[m(input_ids=x[None]).logits[0, :-1] for x in ids] for m in (twin, goal)]
    q, p = (torch.cat(part).log_softmax(-1) for part in parts)
    assert loss == pytest.approx(
        F.kl_div(q, p, reduction="batchmean", log_target=True).item(), rel=1e-4
    )


UNLABELED = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "columns": lambda: {"input": X},
    "frame": lambda: pd.DataFrame(X.numpy()),
    "batches": lambda: [X[:16], X[16:32], X[32:]],
    "iterator": lambda: iter([X[:16], X[16:32], X[32:]]),
    "loader": lambda: DataLoader(TensorDataset(X), batch_size=16),
    "splits": lambda: {"train": {"input": X}, "test": {"input": X[:2]}},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", UNLABELED)
def test_rows_without_labels_learn_from_the_teacher(kind):
    goal = net()
    with collected_assumptions() as assumed:
        losses, trained = train(UNLABELED[kind](), distill=goal, epochs=20)
    expected = train((X, Y), distill={"teacher": goal, "alpha": 1}, epochs=20)
    assert losses == pytest.approx(expected[0]) and losses[-1] < 0.5 * losses[0]
    torch.testing.assert_close(trained, expected[1])
    assert "no labels" in assumed[0].text


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "outputs"),
    [("binary", 1), ("binary", 2), ("multilabel", 3), ("regression", 1), ("regression", 3)],
)
def test_other_tasks_learn_without_labels(name, outputs):
    goal = net(outputs=outputs)
    losses, _ = train(X, net(1, outputs), distill=goal, task=name, epochs=30)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("shape", [(1,), (4,)])
def test_pixels_learn_with_and_without_labels(shape):
    def make(seed):
        torch.manual_seed(seed)
        return nn.Conv2d(2, *shape, 3, padding=1)

    x = torch.randn(12, 2, 5, 5)
    labels = torch.randint(0, 2, (12, 5, 5))
    labels[:, 0] = -100
    for data in (x, (x, labels)):
        losses, _ = train(
            data, make(1), distill={"teacher": make(0), "alpha": 1}, task="segmentation", epochs=20
        )
        assert losses[-1] < 0.6 * losses[0]


def test_several_outputs_are_compared_each_by_its_task():
    class Two(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.kind, self.age = nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x):
            return {"kind": self.kind(x), "age": self.age(x)}

    goal, student = Two(0), Two(1)
    labels = {"kind": Y, "age": X[:, 0]}
    given = {"teacher": goal, "alpha": 1, "temperature": 2.0}
    (loss,) = fit(copy.deepcopy(student), ({"x": X}, labels), distill=given, lr=1e-9, **STEP)
    p, q = ((m(X)["kind"] / 2).log_softmax(-1) for m in (goal, student))
    soft = 4 * F.kl_div(q, p, reduction="batchmean", log_target=True)
    expected = soft + F.mse_loss(goal(X)["age"], student(X)["age"])
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def quantized(model, format_text="4.2", **further):
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(model, **further))
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    config = {"name": "integer", "width": 4, "frac_width": 2}
    return passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": config}})[0]


def test_a_quantized_graph_learns_its_float_model_and_packs():
    goal = net().eval()
    mg = quantized(goal, dummy_in={"input": X[:2]})
    losses = fit(mg.model, X, epochs=15, lr=1e-2, distill=goal, batch_size=16)
    assert losses[-1] < 0.7 * losses[0]
    assert sum(isinstance(x, QuantizedOperator) for x in mg.model.modules()) == 2
    assert fit(mg.model, X, distill=MaseGraph(goal, dummy_in={"input": X[:2]}), batch_size=16)


@pytest.mark.parametrize("kind", ["cosine", "mse"])
def test_hidden_layers_are_those_of_equal_names(kind):
    goal, student = net().eval(), net(1)
    student[2].p = 0.0
    given = {"teacher": goal, "alpha": 0, "hidden": kind, "hidden_weight": 2.0}
    twin = copy.deepcopy(student)
    (loss,) = fit(student, (X, Y), distill=given, lr=1e-9, **STEP)
    pairs = [(m[0](X), m(X)) for m in (twin.eval(), goal)]
    distances = []
    for x, y in zip(*pairs, strict=True):
        relative = (x - y).square().mean() / y.square().mean()
        cosine = 1 - (x * y).sum(-1) / x.norm(dim=-1) / y.norm(dim=-1)
        distances.append(cosine.mean() if kind == "cosine" else relative)
    expected = F.cross_entropy(twin(X), Y) + 2 * torch.stack(distances).mean()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in goal.modules())


def test_hidden_layers_of_a_graph_are_those_of_its_model():
    goal = load_model("mlp").eval()
    mg = quantized(goal)
    hidden = HiddenStates(mg.model, goal, "mse")
    assert set(hidden._layers) == {"fc1", "fc2", "fc3"}
    hidden.remove()
    pixels = torch.randn(20, 1, 8, 8)
    given = {"teacher": goal, "hidden": "mse"}
    losses = fit(mg.model, {"pixel_values": pixels}, distill=given, epochs=10, lr=3e-3)
    assert losses[-1] < losses[0]


def test_hidden_tokens_that_are_padding_do_not_count(texts):
    goal, student = load_model("bert-tiny").eval(), load_model("bert-tiny", seed=1).eval()
    hidden = HiddenStates(student, goal, "mse")
    for size in (1, 4):
        (batch,) = texts.take(torch.arange(1)).batches(1)
        columns = {n: batch[n] for n in ("input_ids", "attention_mask")}
        padded = {n: F.pad(x, (0, size - 1)) for n, x in columns.items()}
        with torch.no_grad():
            goal(**padded)
        student(**padded)
        loss = hidden.loss(padded["attention_mask"]).item()
        if size == 1:
            first = loss
    assert loss == pytest.approx(first, rel=1e-4)


def test_layers_that_pruning_narrowed_do_not_count():
    goal = load_model("mlp").eval()
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(goal))
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    weight = {"sparsity": 0.5, "method": "l2-norm", "granularity": "row"}
    mg, info = passes.prune_transform_pass(mg, {"weight": weight})
    before, after = info["parameters"]
    pixels = torch.randn(64, 1, 8, 8)
    given = {"teacher": goal, "hidden": "cosine"}
    losses = fit(mg.model, {"pixel_values": pixels}, distill=given, epochs=10, lr=3e-3)
    assert after < 0.6 * before and losses[-1] < 0.7 * losses[0]


def test_evaluating_in_training_does_not_disturb_hidden_layers():
    goal = net().eval()
    given = {"teacher": goal, "hidden": "mse"}

    def look(step, steps):
        with torch.no_grad(), torch.random.fork_rng():
            goal(X[:3])
            student(X[:5])

    student = net(1)
    mine = train(student=student, distill=given, on_step=look)
    theirs = train(distill=given)
    assert mine[0] == theirs[0] and torch.equal(mine[1], theirs[1])


def test_teachers_of_another_dtype_are_compared(recwarn):
    goal = net().double()
    assert train(distill=goal)[0] == pytest.approx(train(distill=net())[0], rel=1e-4)
    student = net(1).bfloat16()
    losses, _ = train((X.bfloat16(), Y), student, distill=goal.float(), epochs=10)
    assert losses[-1] < losses[0]


def test_a_checkpoint_and_a_folder_are_teachers(tmp_path, texts):
    goal = net().eval()
    MaseGraph(goal, dummy_in={"input": X[:2]}).export(tmp_path / "model")
    expected = train(distill=goal)
    for path in (tmp_path, tmp_path / "model", str(tmp_path / "model.mz"), tmp_path / "model.pt"):
        assert train(distill=path)[0] == pytest.approx(expected[0], rel=1e-5)
    load_model("bert-tiny", seed=3).save_pretrained(tmp_path / "hf")
    student = load_model("bert-tiny", seed=4)
    assert fit(student, texts, distill=str(tmp_path / "hf"))


def test_a_users_loss_has_the_rest():
    goal, student = net(), net(1)
    student[2].p = 0.0
    task = Task(
        "own",
        TASKS["classification"].metric,
        F.cross_entropy,
        is_categorical=True,
        output_loss=lambda output, labels: output.square().mean(),
    )
    out = copy.deepcopy(student).eval()(X)
    given = {"teacher": goal, "alpha": 0.25, "temperature": 1}
    (loss,) = fit(student, (X, Y), task=task, distill=given, lr=1e-9, **STEP)
    soft = F.kl_div(
        out.log_softmax(-1), goal.eval()(X).log_softmax(-1), reduction="batchmean", log_target=True
    )
    assert loss == pytest.approx((0.75 * out.square().mean() + 0.25 * soft).item(), rel=1e-5)


def test_answers_of_another_form_are_compared():
    two = net(outputs=2)
    one = copy.deepcopy(two)
    one[3] = nn.Linear(16, 1)
    with torch.no_grad():  # one logit is the difference of two
        one[3].weight[:] = two[3].weight[1:] - two[3].weight[:1]
        one[3].bias[:] = two[3].bias[1:] - two[3].bias[:1]
    losses = [train((X, Y % 2), net(1, 1), distill=goal, task="binary")[0] for goal in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.manual_seed(0)
    x, small, large = torch.randn(6, 1, 8, 8), nn.Conv2d(1, 2, 2, 2), nn.Conv2d(1, 2, 1)
    labels = torch.zeros(6, 8, 8, dtype=torch.long)
    assert train((x, labels), large, distill=small, task="segmentation", epochs=3)[0]
    with pytest.raises(ConfigError, match="expected a teacher of the same task"):
        train((x, labels), large, distill=nn.Conv2d(1, 3, 1), task="segmentation")
    with pytest.raises(
        ConfigError, match=r"the teacher cannot take the rows, input \(\d, 1, 8, 8\)"
    ):
        train((x, labels), large, distill=nn.Conv2d(3, 2, 1), task="segmentation")


def test_labels_that_do_not_count_have_no_part():
    goal, labels = net(), Y.clone()
    labels[::2] = -100
    given = {"teacher": goal, "alpha": 1}
    student = net(1)
    student[2].p = 0.0
    (loss,) = fit(copy.deepcopy(student), (X, labels), distill=given, lr=1e-9, **STEP)
    (half,) = fit(student, (X[1::2], Y[1::2]), distill=given, lr=1e-9, **STEP)
    assert loss == pytest.approx(half, rel=1e-5)


WRONG = {
    "no teacher": (True, "expected a teacher"),
    "weights": ("teacher.pt", r"does not exist; expected a module, the folder of a run"),
    "a number": (3, r"expected a teacher \(a module, a graph or a path\), or a mapping .* got 3"),
    "a result": (SimpleNamespace(model=net()), "got SimpleNamespace; pass its attribute model"),
    "a result in a mapping": ({"teacher": SimpleNamespace(model=net())}, "its attribute model"),
    "a misspelt field": ({"hidde": "mse"}, "did you mean 'hidden'"),
    "alpha beyond 1": ({"alpha": 1.5}, "expected 0 to 1"),
    "no temperature": ({"temperature": 0}, "expected above 0"),
    "another kind": ({"hidden": "max"}, "expected 'cosine' or 'mse' or 'none'"),
    "a weight of no layers": ({"hidden_weight": 2}, "hidden_weight 2 applies to a comparison"),
    "other classes": ({"teacher": net(outputs=4)}, "shape"),
    "no name in common": ({"teacher": nn.Linear(8, 3), "hidden": "mse"}, "no layer name in common"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name):
    given, message = WRONG[name]
    if isinstance(given, dict):
        given = {"teacher": net(), **given}
    with pytest.raises(ConfigError, match=message):
        train(distill=given)


def test_what_cannot_be_taught_is_refused():
    student = net()
    with pytest.raises(ConfigError, match="would change the teacher"):
        train(student=student, distill=student)
    with pytest.raises(ConfigError, match="expected alpha 1"):
        train(X, distill={"teacher": net(), "alpha": 1.0 - 1e-3}, task="classification")
    with pytest.raises(ConfigError, match="task='regression'"):
        train(X, net(1, 1), distill=net(outputs=1))
    with pytest.raises(ConfigError, match="temperature 2 applies to classes"):
        given = {"teacher": net(outputs=1), "temperature": 2.0}
        train((X, X[:, :1]), net(1, 1), distill=given)
    own = Task("own", Metric("mse", lambda x, y: 0.0, values), F.mse_loss)
    with pytest.raises(ConfigError, match="no comparison with a teacher"):
        train(distill=net(), task=own)
    with pytest.raises(ConfigError, match=r"pass load_trained\('mlp'\)"):
        train(distill="mlp")
    broken = net()
    nn.init.constant_(broken[3].bias, float("nan"))
    with pytest.raises(ConfigError, match="NaN"):
        train(distill=broken)


def test_settings_are_read_once_and_recorded_as_json():
    goal = net()
    settings = Distillation.read({"alpha": 1, "temperature": 3}, goal)
    assert settings.teacher.model is goal and Distillation.read(settings) == settings
    assert Distillation.read(None, goal) is None and Distillation.read(False, goal) is None
    record = settings.record(TASKS["classification"])
    assert json.loads(json.dumps(record)) == {"alpha": 1.0, "temperature": 3.0}
    hidden = {"hidden": "mse", "hidden_weight": 5.0}
    assert Distillation(hidden="mse").record(JUDGED_TASK) == {
        "alpha": 1.0,
        "temperature": 1.0,
        **hidden,
    }
    for name, temperature in {"binary": 2, "regression": 1, "causal-lm": 1}.items():
        found = Distillation(teacher=goal).record(TASKS[name])
        assert found == {"alpha": 0.9, "temperature": temperature}, name
        of_teacher = Distillation().record(TASKS[name], compares_layers=True)
        assert of_teacher == {**found, **(hidden if name == "binary" else {})}, name
        without = Distillation(hidden="none").record(TASKS[name], compares_layers=True)
        assert without == found, name


def test_a_batch_has_the_numbers_of_its_rows():
    feed = Feed(net(), (X, Y), 10)
    seen = torch.cat([part["number of the row"] for part in feed.numbered(torch.Generator())])
    assert sorted(seen.tolist()) == list(range(48)) and seen.tolist() != sorted(seen.tolist())


def test_hidden_layers_that_moved_are_compared_with_their_own():
    goal = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    student = nn.Sequential(goal[0], goal[2])
    for matched in ({"1": "2"}, {}):
        hidden = HiddenStates(student, goal, "mse", matched)
        with torch.no_grad():
            first = goal[0](X)
            second, last = goal[1](first), goal(X)
            out = student(X)
        other = last if matched else second
        loss = hidden.loss(None).item()
        hidden.remove()
        expected = F.mse_loss(out, other) / other.square().mean() / 2  # the first layer is equal
        assert loss == pytest.approx(float(expected), rel=1e-5)
