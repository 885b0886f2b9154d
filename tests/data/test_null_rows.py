"""A row of `null` ends the process in pyarrow: such files are refused, and others are read."""

import gzip
import json

import pytest

from chop.data import load_dataset
from chop.data.null_rows import CHUNK, check_rows
from chop.errors import ConfigError

ROWS = [{"text": "a", "label": n % 2, "more": [None, n]} for n in range(10)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "null",
            "null\n",
            " null \nnull",
            "\n\n null\n",
            "\ufeffnull\n",
            "null null",
            "\r\nnull\r\n",
        ),
        *("null\n" + LINES, LINES + "null\n" + LINES, LINES + "null"),
        *("[null]", "[ null, {}]", '[{"a": 1},\n  null\n]', '[{"a": [null]}, null]'),
        json.dumps({"text": "x" * CHUNK, "label": 1}) + "\nnull\n",
    ],
)
def test_a_row_of_null_is_refused(text, tmp_path):
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"{name}.*a row is null"):
            load_dataset(str(tmp_path / name))
    with pytest.raises(ConfigError, match="a row is null"):
        load_dataset(str(tmp_path))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    with pytest.raises(ConfigError, match=r"b\.jsonl\.gz.*a row is null"):
        load_dataset(str(tmp_path / "b.jsonl.gz"))


@pytest.mark.parametrize(
    "text",
    [
        *(LINES, LINES.strip(), json.dumps(ROWS), json.dumps(ROWS, indent=2)),
        *('{"a": null}\n', '{"a": [\n  1,\n  null\n]}', '{"a":\n null}', '{"null": "null"}\n'),
        *('{"text": "\\nnull\\n"}\n', "nullable\n", ""),
        "{" + f'"a": [{"1, " * CHUNK}\n null,\n  null]' + "}",
    ],
)
def test_null_in_other_places_is_left_alone(text, tmp_path):
    (tmp_path / "a.jsonl").write_text(text)
    check_rows(tmp_path / "a.jsonl")
    check_rows(tmp_path)


def test_rows_with_values_of_null_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    assert len(load_dataset(str(tmp_path / "a.jsonl"))["train"]) == 8
