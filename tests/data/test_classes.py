"""Classes that look wrong are warned of; those of a split that no training row has are refused."""

import logging

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from chop.base.notices import collected_assumptions
from chop.data.labels import check_classes, class_names, with_binary_labels, with_numbered_labels
from chop.errors import ConfigError


def rows(train, test, feature=None):
    features = None if feature is None else Features({"label": feature})
    splits = {"train": train, "test": test}
    made = {k: Dataset.from_dict({"label": v}, features=features) for k, v in splits.items()}
    return DatasetDict(made)


def rows_with_inputs(train, test, feature=None):
    made = rows(train, test, feature).items()
    return DatasetDict({key: split.add_column("x", [0] * len(split)) for key, split in made})


WARNED = {
    "case": (["pos", "Pos", "neg"] * 4, ["pos"], None, "'Pos' and 'pos' differ only in case"),
    "spaces": (["pos", "pos ", "neg"] * 4, ["pos"], None, "'pos' and 'pos ' differ only in case"),
    "from 1": ([1, 2] * 4, [1, 2], None, "labels start at 1"),
    "from 5": ([5, 7] * 4, [5], None, "labels start at 5"),
    "missing": (["a", "b"] * 4, ["a", "c"], None, "no training row has the class c of the split"),
    "missing number": ([0, 1] * 4, [0, 2], None, "no training row has the class 2"),
    "missing name": ([0, 0], [0, 1], ClassLabel(names=["cat", "dog"]), "has the class dog"),
    "a class a row": (list(range(20)), [3], None, "20 classes in 20 training rows"),
    "a text a row": ([f"t{i}" for i in range(20)], ["t1"], None, "20 classes in 20 training rows"),
}


@pytest.mark.parametrize("case", WARNED)
def test_classes_that_look_wrong_are_warned_of(case, caplog):
    train, test, feature, told = WARNED[case]
    with caplog.at_level(logging.WARNING, "chop.data"):
        check_classes(rows(train, test, feature), "mine")
    assert told in caplog.text and len(caplog.records) == 1


def test_amounts_are_sent_to_regression():
    amounts = rows(list(range(1000, 1020)), [3000, 3001])
    with pytest.raises(ConfigError, match=r"--task regression treats labels as numbers\.$"):
        check_classes(amounts, "houses")


@pytest.mark.parametrize(
    ("train", "test", "feature"),
    [
        (["pos", "neg"] * 4, ["pos", "neg"], None),
        ([0, 1, 2] * 4, [0], None),
        ([False, True] * 4, [True], Value("bool")),
        ([0.0, 1.0] * 4, [1.0], None),
        ([0, 1], [1], ClassLabel(names=["cat", "dog"])),
        ([[0, 1]] * 4, [[1]], None),
    ],
)
def test_classes_that_are_right_are_not(train, test, feature, caplog):
    check_classes(rows(train, test, feature), "mine")
    assert not caplog.records


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["pos", "neg"], ["positive", "negative"]),
        ([0, 1], [2, 3]),
        (["0", "1"], ["zero"]),
    ],
)
def test_a_split_of_other_classes_is_refused(train, test):
    with pytest.raises(ConfigError, match="split 'test' .* do not occur in the training"):
        check_classes(rows(train, test), "mine")


@pytest.mark.parametrize("other", ["Cat", "cat "])
def test_a_class_of_a_split_with_another_spelling_is_refused(other):
    with pytest.raises(ConfigError, match=f"'{other}' of the split 'test' differs from 'cat' of"):
        check_classes(rows(["cat", "dog"] * 4, ["dog", other]), "mine")


def test_reading_class_names_shows_no_progress_bar(capfd, monkeypatch):
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    rows = Dataset.from_dict({"labels": ["a", "b"] * 50})
    assert class_names(rows.train_test_split(test_size=0.2, seed=0)) == ["a", "b"]
    assert "examples" not in capfd.readouterr().err


NUMBERS = [str(i) for i in range(12)]


@pytest.mark.parametrize("known", [None, {f"LABEL_{i}": i for i in range(12)}])
def test_texts_that_are_whole_numbers_are_numbered_by_value(known):
    given = rows(NUMBERS[::-1], NUMBERS)
    splits = DatasetDict({k: split.add_column("x", [0] * 12) for k, split in given.items()})
    assert class_names(splits) == NUMBERS
    assert with_numbered_labels(splits, known)["test"]["label"][:] == list(range(12))
    lists = {key: Dataset.from_dict({"label": [[n] for n in NUMBERS]}) for key in splits}
    lists = {key: split.add_column("x", [0] * 12) for key, split in lists.items()}
    assert with_binary_labels(DatasetDict(lists), known)["test"]["label"][2] == [0, 0, 1] + [0] * 9


@pytest.mark.parametrize(
    ("train", "feature", "known", "expected"),
    [
        ([["rain"], ["snow", "rain"]], None, None, [[1, 0], [1, 1]]),
        ([["rain"], ["snow", "rain"]], None, {"Snow": 0, "Rain": 1}, [[0, 1], [1, 1]]),
        ([[1], []], List(ClassLabel(names=["a", "b", "c"])), None, [[0, 1, 0], [0, 0, 0]]),
        ([[0, 1], [1, 1]], None, None, [[0, 1], [1, 1]]),
    ],
    ids=["texts", "texts of a model", "named numbers", "numbers"],
)
def test_lists_of_classes_become_one_number_for_each_class(train, feature, known, expected):
    splits = with_binary_labels(rows_with_inputs(train, train[:1], feature), known)
    assert splits["train"]["label"][:] == expected and splits["test"]["label"][:] == expected[:1]


OWN = {"hi": 0, "lo": 1, "mid": 2}
NUMBERED = ("folders", "lists of numbers")


@pytest.mark.parametrize("form", ["texts", "folders", "lists", "lists of numbers"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["mid", "hi", "lo"], [2, 0, 1]),
        (["lo", "mid", "lo"], [1, 2, 1]),
        (["Mid"], [2]),
        (["lo", "bird"], "'bird' is not a class of the model: its classes are hi, lo, mid"),
        (["high", "low"], "'high', 'low' is not a class"),
    ],
)
def test_classes_have_the_numbers_of_a_model_that_names_them(form, given, expected):
    named = ClassLabel(names=sorted({*given}))
    labels = [named.str2int(name) for name in given] if form in NUMBERED else given
    feature = named if form in NUMBERED else Value("string")
    is_list = form.startswith("lists")
    labels = [[label] for label in labels] if is_list else labels
    number = with_binary_labels if is_list else with_numbered_labels
    data = rows_with_inputs(labels, labels[:1], List(feature) if is_list else feature)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            number(data, OWN, is_closed=True)
        return
    wanted = [[int(i == each) for i in range(3)] for each in expected] if is_list else expected
    numbered = number(data, OWN, is_closed=True)
    assert numbered["train"]["label"][:] == wanted and numbered["test"]["label"][:] == wanted[:1]


def test_names_of_folders_without_rows_are_not_refused():
    named = ClassLabel(names=["bird", "lo", "mid"])
    with collected_assumptions() as assumptions:
        numbered = with_numbered_labels(rows_with_inputs([1, 2], [2], named), OWN, is_closed=True)
    (order,) = [each.text for each in assumptions]
    assert order == f"Classes are numbered in this order: {', '.join(OWN)}."
    assert numbered["train"]["label"][:] == [1, 2] and class_names(numbered) == [*OWN]


@pytest.mark.parametrize("count", [10, 11])
def test_the_order_of_folders_is_an_assumption(count):
    names = [f"class{i:02}" for i in range(count)]
    with collected_assumptions() as assumptions:
        with_numbered_labels(rows_with_inputs([1, 2], [2], ClassLabel(names=names)), None)
    (order,) = [each.text for each in assumptions]
    more = " and 1 more" * (count > 10)
    assert order == f"Classes are numbered in this order: {', '.join(names[:10])}{more}."


def test_numbers_beyond_the_class_names_are_refused():
    assert with_numbered_labels(rows([0, 2], [1]), OWN, is_closed=True)["train"]["label"][:] == [
        0,
        2,
    ]
    with pytest.raises(ConfigError, match="3 is beyond the 3 class names; name each class, from 0"):
        with_numbered_labels(rows([0, 2], [3]), OWN, is_closed=True)


def test_names_that_differ_in_case_are_matched_exactly():
    own = {"Pos": 0, "neg": 1, "pos": 2}
    data = rows_with_inputs(["pos", "Pos"], ["pos"])
    numbered = with_numbered_labels(data, own, is_closed=True)
    assert numbered["train"]["label"][:] == [2, 0]
