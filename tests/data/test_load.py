import re
import time

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from chop.base import hub
from chop.base.notices import collected_assumptions
from chop.data import load_dataset, num_labels
from chop.errors import ConfigError, UnavailableError


def rows(count, **columns):
    return Dataset.from_dict(
        {"text": [f"text {i}" for i in range(count)], "label": [i % 2 for i in range(count)]}
        | {name: [value] * count for name, value in columns.items()}
    )


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_folder_of_files(tmp_path, kind):
    for split, count in (("train", 7), ("test", 3)):
        getattr(rows(count), f"to_{kind}")(tmp_path / f"{split}.{kind}")
    splits = load_dataset(tmp_path)
    assert {name: len(split) for name, split in splits.items()} == {"train": 7, "test": 3}
    assert splits["test"][2] == {"text": "text 2", "label": 0}


def test_a_folder_written_by_save_to_disk(tmp_path):
    DatasetDict(train=rows(5), validation=rows(2)).save_to_disk(tmp_path / "saved")
    splits = load_dataset(str(tmp_path / "saved"))
    assert {name: len(split) for name, split in splits.items()} == {"train": 5, "test": 2}


def test_unlabeled_splits_are_dropped_and_validation_stands_in():
    hidden = Dataset.from_dict({"text": ["a", "b"], "label": [-1, -1]})
    splits = load_dataset(
        DatasetDict(train=rows(4), validation=rows(2), test=hidden, unsupervised=hidden)
    )
    assert {name: len(split) for name, split in splits.items()} == {"train": 4, "test": 2}


def test_a_fifth_is_held_out_where_there_is_one_split_only():
    splits = load_dataset(DatasetDict(train=rows(50)))
    assert (len(splits["train"]), len(splits["test"])) == (40, 10)
    assert not set(splits["train"]["text"]) & set(splits["test"]["text"])


def test_limit_draws_from_all_classes_of_a_sorted_file():
    sorted_rows = Dataset.from_dict(
        {"text": [f"text {i}" for i in range(200)], "label": [i // 100 for i in range(200)]}
    )
    splits = load_dataset(DatasetDict(train=sorted_rows, test=sorted_rows), limit=40)
    assert len(splits["train"]) == len(splits["test"]) == 40
    assert 8 < sum(splits["train"]["label"]) < 32
    again = load_dataset(DatasetDict(train=sorted_rows, test=sorted_rows), limit=40)
    assert again["test"]["text"][:] == splits["test"]["text"][:]


def test_limit_above_the_size_keeps_everything():
    assert len(load_dataset("digits", limit=10_000)["test"]) == 360


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ConfigError, match=f"at least one row, got {limit}"):
        load_dataset("digits", limit=limit)


@pytest.mark.parametrize("name", ["digit", "stanfordnlp/imdb", "no such thing"])
def test_an_unknown_name_offline_is_one_sentence_and_quick(name):
    start = time.perf_counter()
    with pytest.raises(UnavailableError) as caught:
        load_dataset(name)
    assert time.perf_counter() - start < 10
    message = str(caught.value)
    assert message.startswith(f"data set '{name}'") and "\n" not in message
    assert "cannot be reached" in message and "digits" in message


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="contains no data set: expected parquet, csv or json"):
        load_dataset(tmp_path)


def test_a_data_set_without_labels_is_refused():
    plain = Dataset.from_dict({"text": ["a", "b"]})
    reason = "no column 'labels' or 'label', only 'text', as a .txt file or a JSON list has"
    with pytest.raises(ConfigError, match=reason):
        load_dataset(DatasetDict(train=plain))
    with pytest.raises(ConfigError, match="no labeled split 'train': found .'test'."):
        load_dataset(DatasetDict(test=plain))
    with pytest.raises(ConfigError, match="no column 'labels' or 'label'"):
        num_labels(DatasetDict(train=plain))


def test_the_only_column_of_repeated_texts_is_suggested_as_the_label():
    columns = {"size": [1.0, 2.0, 3.0], "note": ["a", "a", "a"], "kind": ["no", "yes", "no"]}
    with pytest.raises(ConfigError, match="such as 'kind', which has 2 texts"):
        load_dataset(DatasetDict(train=Dataset.from_dict(columns)))
    columns["other"] = ["b", "b", "c"]
    with pytest.raises(ConfigError) as caught:
        load_dataset(DatasetDict(train=Dataset.from_dict(columns)))
    assert "such as" not in str(caught.value)


def test_num_labels_from_the_feature_or_the_largest_label():
    assert num_labels(DatasetDict(train=rows(6))) == 2
    named = Features(text=Value("string"), label=ClassLabel(names=["a", "b", "c"]))
    assert num_labels(DatasetDict(train=rows(6).cast(named))) == 3
    words = Dataset.from_dict({"text": ["a", "b"], "label": ["bad", "good"]})
    with pytest.raises(ConfigError, match=r"such as 'good'; .* splits.class_encode_column"):
        num_labels(DatasetDict(train=words))


def test_a_dead_network_is_probed_once(monkeypatch):
    calls = []

    class Session:
        def head(self, url, timeout):
            calls.append((url, timeout))
            raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    hub._endpoint_answers.cache_clear()
    try:
        assert not hub.hub_is_reachable() and not hub.hub_is_reachable()
        assert len(calls) == 1 and calls[0][1] <= 3
    finally:
        hub._endpoint_answers.cache_clear()


def test_the_cache_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "deep" / "cache"))
    assert hub.cache_folder() == tmp_path / "deep" / "cache"
    assert hub.cache_folder().is_dir()


def test_a_table_without_labels_is_refused_by_its_columns():
    from chop.data import required_label_column

    assert required_label_column(["text", "label"]) == "label"
    with pytest.raises(ConfigError, match=r"no column 'labels' or 'label' among \['text', 'y'\]"):
        required_label_column(["text", "y"])


def labels_of(*values):
    return DatasetDict(train=Dataset.from_dict({"text": ["a"] * len(values), "label": values}))


@pytest.mark.parametrize(
    "values, told",
    [
        ([0, 1, None, 1, None], "2 of 5 rows of the split 'train' have no label in the column"),
        ([None, 0, 1, 0], "1 of 4 rows"),
        (["good", " ", "", "bad", None], "3 of 5 rows"),
        ([0.0, float("nan"), 1.0], "1 of 3 rows"),
        ([None, None], "no labeled split 'train'"),
        ([-1, -1], "no labeled split 'train'"),
    ],
)
def test_rows_without_a_label_are_counted(values, told):
    with pytest.raises(ConfigError, match=told):
        load_dataset(labels_of(*values))


@pytest.mark.parametrize(
    "values", [[0, 1, 1], ["b", "a", "b"], [0.5, -1.0, 2.0], [[0, 1], [1], [0]]]
)
def test_labels_of_every_row_are_taken(values):
    splits = load_dataset(labels_of(*values, *values))
    assert len(splits["train"]) + len(splits["test"]) == 6
    splits = labels_of(*values)
    splits["test"] = Dataset.from_dict({"text": ["a"] * 2, "label": [None, None]})
    assert len(load_dataset(splits)["train"]) == 2


def columns(**more):
    rows = {"a": [0.5, 1.5], "rain": [0, 1], "snow": [1, 1], "where": ["x", "y"]} | more
    return DatasetDict(train=Dataset.from_dict(rows), test=Dataset.from_dict(rows))


def test_several_columns_of_labels_become_one():
    splits = load_dataset(columns(labels=[7, 7]), label="rain, snow")
    assert splits["train"].column_names == ["a", "where", "labels"]
    assert splits["test"]["labels"][:] == [[0, 1], [1, 1]]
    mixed = load_dataset(columns(rain=[True, False]), label="rain,snow")
    assert mixed["test"]["labels"][:] == [[1, 1], [0, 1]]
    named = load_dataset(columns(**{"rain,snow": [1, 0]}), label="rain,snow")
    assert named["train"]["labels"][:] == [1, 0]


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("rain,snw", "label column 'snw': did you mean 'snow'"),
        ("rain,rain", "label column 'rain' is given twice"),
        ("rain,where", "label column 'where': expected numbers"),
        ("rain,wind", "label column 'wind': 1 of 2 rows have no number"),
    ],
)
def test_several_columns_that_are_no_labels(label, told):
    with pytest.raises(ConfigError, match=told):
        load_dataset(columns(wind=[1.0, None]), label=label)


def test_missing_labels_are_reported_under_the_name_of_their_column(tmp_path):
    table = tmp_path / "irises.csv"
    table.write_text("width,species\n" + "1.5,setosa\n" * 9 + "2.5,\n")
    with pytest.raises(ConfigError, match="1 of 10 rows .* no label in the column 'species'"):
        load_dataset(table, label="species")


@pytest.mark.parametrize(("given", "described"), [(None, "None"), (5, "int")])
def test_a_data_set_that_is_no_name_is_one_sentence(given, described):
    with pytest.raises(ConfigError, match=rf"a name, a path or .*DatasetDict, got {described}\.$"):
        load_dataset(given)


@pytest.mark.parametrize("label", [None, "y"])
@pytest.mark.parametrize("first", ["1.31,3.27,0", "5.1,3.5,1.4,setosa", "1,1,2.5"])
def test_a_table_without_header_is_named(tmp_path, first, label):
    path = tmp_path / "points.csv"
    path.write_text("\n".join([first] * 6))
    with pytest.raises(ConfigError, match="header seems to be missing: add a first line"):
        load_dataset(path, label=label)


@pytest.mark.parametrize("first", ["0,1,2", "x1,x2,3"])
def test_numbered_columns_are_a_header(tmp_path, first):
    path = tmp_path / "points.csv"
    path.write_text("\n".join([first] * 6))
    with pytest.raises(ConfigError, match="has no column 'labels'"):
        load_dataset(path)


def test_a_split_without_labels_is_reported(tmp_path):
    (tmp_path / "train.csv").write_text("x,label\n" + "1.5,0\n2.5,1\n" * 5)
    (tmp_path / "test.csv").write_text("x,label\n" + "1.5,\n" * 4)
    with collected_assumptions() as assumed:
        splits = load_dataset(tmp_path)
    assert len(splits["test"]) == 2
    texts = " ".join(each.text for each in assumed)
    assert re.search("Split 'test' of .* has no labels.* No labeled test split found: 20%", texts)
