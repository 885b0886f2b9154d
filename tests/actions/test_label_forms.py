"""Rows as people have them: text labels, one-hot labels, labels from 1, batches, sparse arrays."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn

import chop
from chop.errors import ConfigError
from chop.train import evaluate, fit, read_rows
from chop.train.unlabeled import read_inputs
from chop.workloads.workload import Workload

X = torch.randn(90, 8, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
NAMES = np.array(["ant", "bee", "cat"])[Y.numpy()]
ONE_HOT = nn.functional.one_hot(Y)
FRAME = pd.DataFrame(X.numpy(), columns=[f"c{i}" for i in range(8)])


def net(answers=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, answers))


def assumptions(workload):
    return [each.text for each in workload.assumptions]


@pytest.mark.parametrize(
    "data",
    [
        FRAME.assign(label=NAMES),
        FRAME.assign(labels=pd.Categorical(NAMES)),
        (FRAME, pd.Series(NAMES)),
        (X, NAMES),
        (X, NAMES.tolist()),
        (X, pd.DataFrame({"kind": NAMES})),
        {"x": X, "label": NAMES},
    ],
)
def test_labels_that_are_text_are_classes_as_in_a_table(data):
    workload = Workload.of(net(), data, data)
    assert workload.train.labels.equal(Y)
    assert "Classes are numbered in this order: ant, bee, cat." in assumptions(workload)
    assert len(read_inputs(net(), data)) == 90


@pytest.mark.parametrize("wrap", [np.asarray, list, pd.Series])
def test_texts_of_whole_numbers_are_classes_by_value(wrap):
    texts = wrap([str(number) for number in (9 + Y).tolist()])
    workload = Workload.of(net(), (X, texts), (X, texts))
    assert workload.train.labels.equal(Y)
    assert "Classes are numbered in this order: 9, 10, 11." in assumptions(workload)


def test_splits_share_the_numbers_of_their_classes():
    few = NAMES != "ant"
    workload = Workload.of(net(), (X, NAMES), (X[few], NAMES[few]))
    assert workload.test.labels.equal(Y[few])


@pytest.mark.parametrize("is_pair", [False, True])
def test_columns_of_test_frames_are_matched_by_name(is_pair):
    def rows(names):
        return (FRAME[names], Y) if is_pair else FRAME[names].assign(label=Y.numpy())

    names = list(FRAME.columns)
    workload = Workload.of(
        net(), rows(names), rows(names[::-1]), validation=rows(names[4:] + names[:4])
    )
    (expected,) = workload.train.columns.values()
    for split in (workload.test, workload.validation):
        assert torch.equal(*split.columns.values(), expected)
    for wrong in (names[:-1], [*names[:-1], "z"]):
        other = rows(names)
        frame = (other[0] if is_pair else other).rename(columns={"c7": "z"})
        frame = frame[[*wrong, *([] if is_pair else ["label"])]]
        with pytest.raises(ConfigError, match="test: the frame has no column 'c7'"):
            Workload.of(net(), rows(names), (frame, Y) if is_pair else frame)


def test_a_model_numbers_its_own_classes():
    model = net()
    model.config = type("Config", (), {"label2id": {"cat": 0, "bee": 1, "ant": 2}})()
    assert Workload.of(model, (X, NAMES), (X, NAMES)).train.labels.equal(2 - Y)


def test_rows_without_a_text_are_refused():
    for gap in (None, float("nan")):
        labels = [gap, *NAMES[1:].tolist()]
        with pytest.raises(ConfigError, match=r"labels: 1 of 90 rows have no label, .* row 1"):
            Workload.of(net(), (X, labels))


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bool])
def test_one_hot_labels_are_classes_where_the_task_says_so(kind):
    rows = X, ONE_HOT.to(kind)
    with pytest.raises(ConfigError, match="3 numbers a row, 0 but for one 1: --task classific"):
        Workload.of(net(), rows)
    workload = Workload.of(net(), rows, rows, task="classification")
    assert workload.train.labels.equal(Y)
    assert any(text.startswith("Labels are one-hot") for text in assumptions(workload))
    assert Workload.of(net(), rows, rows, task="multilabel").train.labels.shape == (90, 3)
    trained = net()
    fit(trained, rows, epochs=1, task="classification")
    found = evaluate(trained, rows, task="classification")
    assert found == evaluate(trained, (X, Y), task="classification")


def test_one_hot_labels_of_yes_and_no():
    pair = nn.functional.one_hot((Y > 0).long())
    with pytest.raises(ConfigError, match="2 numbers a row, 0 but for one 1"):
        Workload.of(net(2), (X, pair))
    for task, answers in (("binary", 1), ("binary", 2), ("classification", 2)):
        workload = Workload.of(net(answers), (X, pair), (X, pair), task=task)
        assert workload.train.labels.equal((Y > 0).long())


def test_a_label_for_each_position_stays_one():
    tokens = torch.nn.functional.one_hot(torch.arange(90) % 4)
    found = Workload.of(nn.Sequential(nn.Embedding(9, 4)), (torch.ones(90, 4).long(), tokens))
    assert found.task.name == "token-classification"
    assert any("batches of rows, pass a DataLoader" in text for text in assumptions(found))


def test_labels_that_begin_at_one_or_are_signs(tmp_path):
    for labels, message in (
        (Y + 1, "these begin at 1: subtract 1 from the labels"),
        (2 * (Y > 0).long() - 1, r"got the labels -1 and 1; .* \(labels \+ 1\) // 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            chop.compress(net(), (X, labels), out=tmp_path)
    with pytest.raises(ConfigError, match=r"task 'binary': got the labels -1 and 1"):
        chop.compress(net(1), (X, 2 * (Y > 0).long() - 1), task="binary", out=tmp_path)


def test_a_list_of_batches_is_read_by_rows():
    batches = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 90, 32)]
    for data in (batches, iter(batches), [(x.numpy(), y.numpy()) for x, y in batches]):
        rows = read_rows(data)
        assert rows.task.name == "classification" and rows.labels.equal(Y)
    positions = [(torch.randn(n, 8), torch.zeros(n).long()) for n in (5, 3, 4)]
    assert read_rows(positions).task.name == "token-classification"


@pytest.mark.parametrize(
    "sparse", [scipy.sparse.csr_matrix(X.numpy()), scipy.sparse.coo_array(X.numpy()), X.to_sparse()]
)
def test_sparse_inputs_are_made_dense(sparse):
    for rows in (read_rows((sparse, Y)), read_rows({"x": sparse, "label": Y})):
        assert next(iter(rows.columns.values())).equal(X)
    assert next(iter(read_inputs(net(), sparse).columns.values())).equal(X)
    assert read_rows((X, scipy.sparse.csr_matrix(ONE_HOT.numpy()))).labels.equal(ONE_HOT)


def test_masked_numbers_are_missing():
    masked = np.ma.masked_greater(X.numpy(), 2)
    for data in ((masked, Y), {"x": masked, "label": Y}):
        with pytest.raises(ConfigError, match=f"{np.ma.count_masked(masked)} masked numbers"):
            read_rows(data)
    whole = np.ma.masked_array(X.numpy())
    assert next(iter(read_rows((whole, Y)).columns.values())).equal(X)


def test_a_structured_array_is_named():
    rows = np.rec.fromarrays(list(X.numpy().T), names=",".join(FRAME.columns))
    with pytest.raises(ConfigError, match="structured array with the fields c0, c1"):
        read_rows((rows, Y))


def test_quantize_takes_the_column_of_the_labels():
    small = chop.quantize(net(), "8.auto", FRAME.assign(kind=NAMES), label_column="kind")
    wanted = chop.quantize(net(), "8.auto", (X, Y))
    assert torch.equal(small(X), wanted(X))


def test_quantize_names_rows_of_a_wrong_type():
    with pytest.raises(ConfigError, match=r"cannot take rows of 'data', input int8 \(3, 8\)"):
        chop.quantize(net(), "8.auto", ((10 * X).to(torch.int8), Y))


def test_logits_smaller_than_masks_are_told():
    masks = (torch.randn(20, 8, 8) > 0).long()
    for stride, count in ((1, 0), (2, 1)):
        model = nn.Sequential(nn.Conv2d(3, 2, 3, stride=stride, padding=1))
        workload = Workload.of(model, (torch.randn(20, 3, 8, 8), masks))
        told = [text for text in assumptions(workload) if "4 x 4 pixels, masks have 8 x 8" in text]
        assert len(told) == count


def test_splits_with_labels_that_do_not_go_together_are_refused():
    for test, message in (
        ((X, Y), "split 'train' are text, those of 'test' are numbers"),
        (
            (X, ["zebra"] * 90),
            r"classes of the split 'test' \(zebra\) do not occur in the training",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            Workload.of(net(), (X, NAMES), test)
    some = Workload.of(net(4), (X, NAMES), (X, [*NAMES[:-1], "zebra"]))
    assert "No training row has the class zebra of the split 'test'." in assumptions(some)


def test_bytes_are_texts_and_a_message_names_what_is_no_number():
    assert Workload.of(net(), (X, NAMES.astype("S3"))).task.name == "classification"
    with pytest.raises(ConfigError, match="column 'label': expected numbers, got 'a'"):
        read_rows(FRAME.assign(label=[1, "a"] * 45))
    with pytest.raises(ConfigError, match="at least one row, got 0 rows"):
        read_rows(pd.DataFrame({"a": [], "label": []}))


def test_spellings_of_a_class_are_named(tmp_path):
    labels = (["cat", "dog", "Dog", "cat "] * 23)[:90]
    alike = "'Dog' and 'dog', 'cat' and 'cat '"
    with pytest.raises(ConfigError, match=f"2 classes, and the rows have 4, .* differ in {alike}."):
        chop.compress(net(2), (X, labels), out=tmp_path)


def test_one_number_per_row_and_two_classes_are_a_binary_task(tmp_path):
    labels = np.where(Y == 0, "no", "yes")
    with pytest.raises(ConfigError, match="the classes are no and yes: set") as raised:
        chop.compress(net(1), (X, labels), out=tmp_path)
    assert "task to binary. A positive number then means yes" in str(raised.value)
