"""A row of `null` ends the process in pyarrow: such files are refused, and others are read."""

import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile

import datasets
import pytest

from chop.data import load_dataset
from chop.data.files import prepared
from chop.data.null_rows import CHUNK, check_rows
from chop.errors import ConfigError

ROWS = [{"text": "a", "label": n % 2, "more": [None, n]} for n in range(10)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.sampled(8)
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
    check_rows([tmp_path / "a.jsonl"])
    check_rows([tmp_path / "a.jsonl"], are_all_json=True)


def test_rows_with_values_of_null_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    assert len(load_dataset(str(tmp_path / "a.jsonl"))["train"]) == 8


def zipped(name, text):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, text)
    return packed.getvalue()


def tarred(name, text):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


@pytest.mark.parametrize("text", [b"null\n" + LINES.encode(), b"[null, {}]", b"null\nnull\n"])
def test_content_tells_what_is_packed_and_not_the_name(text, tmp_path):
    packed = {
        "compressed.json": gzip.compress(text),
        "archive.zip": zipped("rows.jsonl", text),
        "archive.tar": tarred("rows.json", text),
        "archive.tar.gz": gzip.compress(tarred("rows.json", text)),
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{name}.*a row is null"):
            check_rows([tmp_path / name])
    for name in ("compressed.json", "archive.zip"):
        folder = tmp_path / name.partition(".")[2]
        folder.mkdir()
        (tmp_path / name).rename(folder / name)
        with pytest.raises(ConfigError, match=rf"{name}.*a row is null"):
            load_dataset(str(folder))


def test_files_that_are_not_read_as_rows_are_left_alone(tmp_path):
    (tmp_path / "notes.zip").write_bytes(zipped("notes.txt", b"null\n"))
    (tmp_path / "notes.txt").write_bytes(b"null\n")
    files = [tmp_path / "notes.zip", tmp_path / "notes.txt", tmp_path / "missing.json"]
    check_rows(files)
    with pytest.raises(ConfigError, match="a row is null"):
        check_rows(files, are_all_json=True)


def test_what_unpacks_to_too_much_is_refused_before_its_rows_are_read(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"[" + b" " * (64 * CHUNK) + b"{}]"))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="unpacks to more"):
            load_dataset(str(tmp_path / "a.json.gz"))
        assert tracemalloc.get_traced_memory()[1] < 40 * CHUNK
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["null\n", LINES + "null\n" + LINES, "[null]"])
@pytest.mark.parametrize("name", ["a.jsonl", "rows.data"])
def test_rows_of_the_hub_are_looked_at_before_they_are_read(text, name, tmp_path, monkeypatch):
    (tmp_path / name).write_text(text)
    read = []
    builder = hub_builder(tmp_path, name, monkeypatch)
    monkeypatch.setattr(type(builder), "_generate_tables", lambda self, *a, **k: read.append(a))
    with pytest.raises(ConfigError, match=rf"{name}.*a row is null"):
        prepared(builder)
    assert not read  # pyarrow would end the process


def test_other_rows_of_the_hub_are_read(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text(LINES)
    assert prepared(hub_builder(tmp_path, "a.jsonl", monkeypatch))["train"].num_rows == 10


def hub_builder(folder, name, monkeypatch):
    """A reader of JSON whose file is one of the hub, as `datasets` names it; no network is used."""
    place = datasets.download.download_manager
    monkeypatch.setattr(
        place, "cached_path", lambda url, **_: url.replace("hf://datasets/x/y@1", str(folder))
    )
    (folder / "stand-in.jsonl").write_text(LINES)
    builder = datasets.load_dataset_builder(
        "json", data_files=str(folder / "stand-in.jsonl"), cache_dir=str(folder / "cache")
    )
    builder.config.data_files = {"train": [f"hf://datasets/x/y@1/{name}"]}
    return builder
