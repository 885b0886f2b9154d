"""Teachers: what training leaves unchanged, answers by row, and refusals."""

import copy
import math

import pytest
import torch
from torch import nn

from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.train import fit
from chop.train.distillation import teacher
from chop.train.distillation.hidden_states import HiddenStates
from chop.train.distillation.settings import describe_distillation, with_teacher
from chop.train.feed import Feed
from chop.train.unlabeled import read_inputs

X, Y = torch.randn(48, 8, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3


def net(seed=0, outputs=3):
    torch.manual_seed(seed)
    first = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*first, nn.Linear(16, outputs))


class Tokens(nn.Module):
    """Classes of tokens, each from its own number alone."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(3, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids))


@pytest.mark.parametrize("task", [None, "causal-lm", "token-classification"])
def test_a_short_row_may_be_alone_in_a_batch(monkeypatch, task):
    # Each batch in the order of length has a row of 5 tokens, unlike a shuffled pool of one row.
    monkeypatch.setattr("chop.train.rows.BATCHES_PER_POOL", 1)
    ids = [torch.arange(n) % 3 for n in (5, 5, 3)]
    rows = {"input_ids": ids} | ({} if task != "token-classification" else {"labels": ids})
    given = {"teacher": Tokens(0), "alpha": 1}
    losses = []
    for size in (teacher.STORED_BYTES, 0):
        monkeypatch.setattr(teacher, "STORED_BYTES", size)
        losses.append(fit(Tokens(1), rows, distill=given, task=task, batch_size=2, epochs=12))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("hidden", [None, "mse"])
def test_padding_without_a_mask_has_no_part(hidden):
    goal, student = Tokens(0), Tokens(1)
    ids = [torch.tensor(x) for x in ([1], [2, 1, 2, 2, 1, 2])]
    given = {"teacher": goal, "alpha": 1.0, "temperature": 1.0, "hidden": hidden}
    (loss,) = fit(copy.deepcopy(student), {"input_ids": ids}, distill=given, lr=1e-9)
    flat = torch.cat(ids)[:, None]  # a token per row
    (alone,) = fit(student, {"input_ids": flat}, distill=given, lr=1e-9)
    assert loss == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("name", ["bfloat16", "float64"])
def test_modes_and_statistics_stay(name):
    goal = net().to(getattr(torch, name)).train()
    goal[1].eval()
    modes, before = [x.training for x in goal.modules()], copy.deepcopy(goal.state_dict())
    for size in (1, 3):
        fit(net(size), (X, Y), distill={"teacher": goal, "hidden": "cosine"}, batch_size=16)
    assert modes == [x.training for x in goal.modules()]
    assert all(torch.equal(goal.state_dict()[n], x) for n, x in before.items())


def test_modes_of_a_student_stay_where_batches_are_tried():
    student = net(1).train()
    student[1].eval()
    modes = [x.training for x in student.modules()]
    read_inputs(student, [X[:16], X[16:32]])
    assert modes == [x.training for x in student.modules()]


def test_a_teacher_that_training_changes_is_refused():
    goal = net()
    goal[:4].requires_grad_(False)
    student = nn.Sequential(*goal[:4], nn.Linear(16, 3))  # trains its own head
    before = goal[1].running_mean.clone()
    with pytest.raises(ConfigError, match=r"shares 1\.running_mean.*copy\.deepcopy"):
        fit(student, (X, Y), distill=goal)
    assert torch.equal(goal[1].running_mean, before)
    goal[1] = nn.Identity()
    student[1] = nn.Identity()
    assert fit(student, (X, Y), distill=goal)  # frozen layers in common do not change


class Broken(nn.Module):
    """Teacher with a wrong answer to one row."""

    def __init__(self, value):
        super().__init__()
        self.inner, self.value = nn.Linear(8, 3), value

    def forward(self, x):
        return torch.where(x[:, :1] == X[40, 0], self.value, self.inner(x))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("size", [0, teacher.STORED_BYTES])
def test_each_answer_is_checked(monkeypatch, value, size):
    monkeypatch.setattr(teacher, "STORED_BYTES", size)
    with pytest.raises(ConfigError, match="NaN or infinity"):
        fit(net(1), (X, Y), distill=Broken(value), batch_size=16)
    shared = teacher.Teacher(Broken(value))
    for _ in range(2):  # a teacher of several trainings
        with pytest.raises(ConfigError, match="NaN or infinity"):
            fit(net(1), (X, Y), distill=shared, batch_size=16)


def test_labels_are_not_fed_to_a_teacher():
    class WithLoss(nn.Linear):
        def forward(self, x, labels=None):
            assert labels is None
            return super().forward(x)

    assert fit(net(1), (X, Y), distill=WithLoss(8, 3))


def test_outputs_of_other_sizes_are_refused():
    class Two(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.kind, self.age = nn.Linear(8, classes), nn.Linear(8, 1)

        def forward(self, x):
            return {"kind": self.kind(x), "age": self.age(x)}

    rows = {"x": X}, {"kind": Y, "age": X[:, 0]}
    with pytest.raises(ConfigError, match=r"shape \(48, 5\).*model's \(48, 4\)"):
        fit(Two(3), rows, distill=Two(4))


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_without_a_name_is_read(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no model|empty text"):
        fit(net(1), (X, Y), distill=path)


def test_texts_of_a_language_model_are_its_task_without_labels():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    rows = {"input_ids": [torch.randint(30, (n,)) for n in (3, 7, 5)]}
    torch.manual_seed(0)
    goal, student = LlamaForCausalLM(config), LlamaForCausalLM(config)
    with collected_assumptions() as assumed:
        loss = fit(copy.deepcopy(student), rows, distill=goal, lr=1e-9)
    assert "task causal-lm" in assumed[0].text
    given = {"teacher": goal, "alpha": 1}
    named = fit(student, rows, distill=given, lr=1e-9, task="causal-lm")
    assert loss == pytest.approx(named, rel=1e-6)


def test_an_empty_mapping_has_the_defaults():
    goal = net()
    assert with_teacher({"epochs": 1, "distill": {}}, goal)["distill"].teacher.model is goal
    assert with_teacher({"epochs": 1, "distill": None}, goal) == {"epochs": 1}


def test_a_part_without_weight_is_not_described():
    text = describe_distillation({"alpha": 0.0, "temperature": 2.0})
    assert text == "Fine-tuned against the float model (distillation): 1 of the task's loss."


def test_a_mask_is_that_of_the_lengths_of_rows():
    ids = [torch.ones(n, dtype=torch.long) for n in (2, 4)]
    feed = Feed(Tokens(0), {"input_ids": ids, "labels": ids}, 2)
    (columns,) = feed.numbered()
    assert feed.token_mask(columns).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert Feed(net(), (X, Y), 48).token_mask({}) is None


def test_a_layer_with_channels_first_is_compared_by_position():
    torch.manual_seed(0)
    one, two = (nn.Sequential(nn.Conv2d(2, 4, 1)) for _ in range(2))
    x = torch.randn(3, 2, 5, 5)
    hidden = HiddenStates(one, two, "cosine")
    with torch.no_grad():
        expected = 1 - torch.cosine_similarity(one(x), two(x), dim=1).mean()
    assert hidden.loss(None).item() == pytest.approx(expected.item(), rel=1e-5)
    hidden.remove()


@pytest.mark.parametrize("makes_flat", [(0, 1), (1, 0), (1, 1)])
def test_one_number_per_row_has_one_or_two_dimensions(makes_flat):
    goal, student = (
        nn.Sequential(net(seed, 1), nn.Flatten(0) if is_flat else nn.Identity())
        for seed, is_flat in enumerate(makes_flat)
    )
    plain = fit(net(1, 1), X, distill=net(0, 1), task="regression")
    assert fit(student, X, distill=goal, task="regression") == pytest.approx(plain, rel=1e-6)
