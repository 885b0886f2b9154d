"""Cells of tables as people save them."""

import logging

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from chop.data import load_dataset, with_plain_cells, with_vectors
from chop.errors import ConfigError


def splits(**columns):
    return DatasetDict(train=Dataset.from_dict(columns), test=Dataset.from_dict(columns))


@pytest.mark.parametrize("name", ["Unnamed: 0", "Unnamed: 0.1", "__index_level_0__"])
def test_the_index_of_pandas_is_no_input(name, caplog):
    caplog.set_level(logging.WARNING, "chop.data")
    found = with_plain_cells(splits(**{name: [0, 1, 2]}, a=[1.0, 2.0, 3.0], label=[0, 1, 0]))
    assert found["train"].column_names == found["test"].column_names == ["a", "label"]
    assert f"column '{name}' is an index written by pandas" in caplog.text
    other = splits(**{name: [0.5, 1, 2]}, a=[1, 2, 3])  # numbers of somebody's own
    assert with_plain_cells(other)["train"].column_names == [name, "a"]


def test_decimal_commas_are_numbers(caplog):
    caplog.set_level(logging.WARNING, "chop.data")
    given = splits(b=["1,5", "-2", ",25"], a=[1, 2, 3], c=["1,2e-3", None, "0,1"], text=list("xyz"))
    found = with_plain_cells(given)["train"]
    assert found.column_names == given["train"].column_names
    assert found["b"][:] == [1.5, -2.0, 0.25] and found["c"][:] == [0.0012, None, 0.1]
    assert found["text"][:] == list("xyz")
    assert "columns 'b', 'c' have decimal commas" in caplog.text


def test_what_is_no_number_stays_and_what_may_be_two_is_refused():
    given = splits(date=["1,5", "of May"], classes=["1", "2"])
    assert with_plain_cells(given) is given
    with pytest.raises(ConfigError, match="column 'a': '1,325' has a decimal comma or a thousands"):
        with_plain_cells(splits(a=["1,325", "12"]))


@pytest.mark.parametrize("cells", [["314.7", "-2,841.2"], ["1,054.5", None], ["-12.5", "-2,841"]])
def test_thousands_separators_are_refused(cells):
    text = next(cell for cell in cells if cell and "," in cell)
    message = f"column 'a': numbers have thousands separators, such as '{text}'; .* as"
    with pytest.raises(ConfigError, match=f"{message} {text.replace(',', '')}"):
        with_plain_cells(splits(a=cells))
    words = splits(a=[*cells, "1,054.5 km"])
    assert with_plain_cells(words) is words


def test_a_table_of_decimal_commas_from_a_file(tmp_path):
    rows = '"1,5","2,25",0\n"0,5","1,75",1\n' * 5
    (tmp_path / "a.csv").write_text("a,b,label\n" + rows)
    found = with_vectors(with_plain_cells(load_dataset(tmp_path / "a.csv")), [])
    x = np.concatenate([found[key].with_format("numpy")["x"][:] for key in ("train", "test")])
    assert np.array_equal(np.unique(x), [0.5, 1.5, 1.75, 2.25])
    (tmp_path / "b.csv").write_text("a;b;label\n1,5;2,25;0\n0,5;1,75;1\n")
    with pytest.raises(ConfigError, match="separated by semicolons; save"):
        load_dataset(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("value", "message"),
    [(float("inf"), "infinite numbers, in float32.*"), (float("nan"), "blank cells or NaN")],
)
def test_cells_that_are_no_numbers_are_named_by_column(value, message):
    given = splits(a=[1.0, 2.0, 3.0], b=[0.0, value, -value], label=[0, 1, 0])
    told = rf"4 of 6 rows have {message}, in the columns 'b' \(4\); .* is a=2, b="
    with pytest.raises(ConfigError, match=told):
        with_vectors(given, [])
