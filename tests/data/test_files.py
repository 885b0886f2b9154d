"""Files and folders of one's own: what cannot be read is one sentence with a way out."""

import bz2
import gc
import gzip
import lzma

import pytest
from datasets import Dataset

from chop.base.notices import collected_assumptions
from chop.data import get_tokenized_dataset, load_dataset
from chop.data.load import SPLIT_OFF
from chop.errors import ConfigError

HEADER, LINES = "text,label\n", "good film,1\nbad film,0\n" * 4
FILES = {
    "semicolons": ("a.csv", (HEADER + LINES).replace(",", ";"), "separated by semicolons; save"),
    "bars": ("a.csv", (HEADER + LINES).replace(",", "|"), "separated by bars; save"),
    "commas in a tsv": ("a.tsv", HEADER + LINES, "separated by commas; save"),
    "latin": ("a.csv", (HEADER + "f\xfcr,1\n").encode("latin-1"), "save it as UTF-8"),
    "utf-16": ("a.csv", (HEADER + LINES).encode("utf-16"), "save it as UTF-8"),
    "no rows": ("a.csv", HEADER, "it has no rows"),
    "empty": ("a.csv", "", "it has no rows"),
    "empty text": ("a.txt", "", "it has no rows"),
    "commas in texts": ("a.csv", HEADER + LINES + "bad, very bad,0\n", "line 10 has 3 columns"),
    "packed parquet": (
        "a.parquet.gz",
        "",
        "compressed Parquet files are not supported; decompress it",
    ),
    "no label": ("a.csv", " text,Label\n" + LINES, "its columns are ' text', 'Label'"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_read_says_what_to_do(case, tmp_path):
    name, content, told = FILES[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=told):
        load_dataset(path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_folder_of_files_with_different_columns_is_refused(tmp_path):
    for number, header in enumerate(["text,target\n", "review,label\n", "a,b\n"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.csv").write_text(HEADER + LINES)
        (folder / "test.csv").write_text(header + LINES)
        with pytest.raises(ConfigError, match=r"different columns: 'test.csv' has"):
            load_dataset(folder)
    gc.collect()  # `datasets` leaves the file open


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("end", PACKED)
@pytest.mark.parametrize(("start", "separator"), [("a.csv", ","), ("a.TSV", "\t")])
def test_a_compressed_file_is_read_as_what_it_holds(start, separator, end, tmp_path):
    path = tmp_path / f"{start}{end}"
    path.write_bytes(PACKED[end]((HEADER + LINES).replace(",", separator).encode()))
    found = load_dataset(path)
    assert found["train"].column_names == ["text", "label"]
    assert len(found["train"]) + len(found["test"]) == 8


@pytest.mark.parametrize(
    "name",
    [
        "no.csv.gz",
        "no.CSV.GZ",
        "no.jsonl.xz",
        "no.parquet",
        "no/a.npz.gz",
        "a.gz",
        "./no",
        "../no",
        "~/no",
        "a/b/c",
    ],
)
def test_a_file_that_is_not_there_is_looked_for_nowhere_else(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("chop.data.load._from_hub", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(ConfigError, match=f"^'{name}' does not exist: expected one of .csv"):
        load_dataset(name)


def test_a_document_is_to_be_copied_to_a_text_file(tmp_path):
    (tmp_path / "notes.md").write_text("# Notes")
    with pytest.raises(ConfigError, match=r"expected .*; copy it to a file that ends in \.txt"):
        load_dataset(tmp_path / "notes.md")


@pytest.mark.parametrize("name", [".", "..", "./", "../data"])
def test_a_folder_has_a_name_wherever_one_stands(name, monkeypatch, tmp_path):
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (folder / "train.csv").write_text(HEADER + LINES)
    monkeypatch.chdir(folder / "below" if name == ".." else folder)
    assert load_dataset(name)["train"].column_names == ["text", "label"]


@pytest.mark.parametrize("name", ["rows[1].csv", "rows*.csv", "rows?.csv", "[1]/rows.csv"])
def test_a_name_that_is_a_pattern_is_no_other_file(name, tmp_path):
    for each in ("rows1.csv", name):
        path = tmp_path / each
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEADER + LINES.replace("film", each))
    found = load_dataset(path)
    texts = [text for split in found.values() for text in split["text"]]
    assert sorted(texts) == [f"bad {name}"] * 4 + [f"good {name}"] * 4


@pytest.mark.parametrize("name", ["data[1]", "dat?1", "data*/below"])
def test_a_folder_that_is_a_pattern_is_refused(name, tmp_path):
    for each in ("data1", name):
        (tmp_path / each).mkdir(parents=True)
        (tmp_path / each / "train.csv").write_text(HEADER + LINES)
    with pytest.raises(ConfigError, match="which also match other folders; rename it"):
        load_dataset(tmp_path / name)


@pytest.mark.parametrize("start", ["\ufeff", ""])
@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_marks_and_line_ends_of_windows_are_read(start, end, tmp_path):
    path = tmp_path / "\xe4 b.csv"
    path.write_bytes((start + HEADER + LINES).replace("\n", end).encode())
    found = load_dataset(path)
    assert found["train"].column_names == ["text", "label"]
    assert {*found["train"]["label"]} <= {0, 1}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (range(8), "column 'text': expected texts, got int64"),
        ([0.5] * 8, "column 'text': expected texts, got (float64|double)"),
        (["good", ""] * 4, "rows of the split '(train|test)' have no text in the column 'text'"),
    ],
)
def test_a_column_without_texts_is_refused(values, told, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "".join(f"{value},{i % 2}\n" for i, value in enumerate(values)))
    with pytest.raises(ConfigError, match=told):
        get_tokenized_dataset(path, "bert-tiny")


@pytest.mark.parametrize("folders", [("",), ("a",), ("a", "b/.hidden")])
def test_pictures_without_classes_are_refused(folders, tmp_path):
    from PIL import Image

    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for number in range(5):
        Image.new("L", (4, 4)).save(tmp_path / folders[0] / f"{number}.png")
    with pytest.raises(ConfigError, match="less than two classes of images"):
        load_dataset(tmp_path)
    (tmp_path / "labels.csv").write_text("filename,label\n0.png,cat\n")
    with pytest.raises(ConfigError, match="Labels in '.*labels.csv' are not read: move each image"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("flat", ["test", "valid"])
def test_the_folder_without_folders_of_classes_is_named(flat, tmp_path):
    from PIL import Image

    for folder in ("train/cat", "train/dog", flat):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (4, 4)).save(tmp_path / folder / f"{number}.png")
    with pytest.raises(ConfigError, match=f"folders of classes, but not in '[^,]*/{flat}': move"):
        load_dataset(tmp_path)


def test_folders_of_texts_name_the_table(tmp_path):
    for folder in ("train/neg", "train/pos", "test/neg", "test/pos"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.txt").write_text("some words")
    with pytest.raises(ConfigError, match="folders are not read as labels: expected a table with"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("folders", [("train", "test"), ("train/cat", "train/dog", "train/dog/b")])
def test_pictures_beside_folders_of_classes_are_refused(folders, tmp_path):
    from PIL import Image

    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (4, 4)).save(tmp_path / folder / f"{number}.png")
    with pytest.raises(ConfigError, match="a folder per class, .* or in deeper folders"):
        load_dataset(tmp_path)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("fault", [TypeError, AttributeError, KeyError, AssertionError, ValueError])
@pytest.mark.parametrize(
    "place",
    [
        *("files.check_unpacked", "files.check_rows", "files.check_pictures", "files._checked"),
        *("load._train_and_test", "load._shorten", "load.with_label"),
    ],
)
def test_a_fault_of_chop_is_not_reported_as_one_of_files(fault, place, tmp_path, monkeypatch):
    def faulty(*args, **kwargs):
        raise fault("of chop")

    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text("a,label\n1,0\n2,1\n3,0\n")
    monkeypatch.setattr(f"chop.data.{place}", faulty)
    for name in ("rows", "rows/train.csv"):
        with pytest.raises(fault, match="^'?of chop"):
            load_dataset(tmp_path / name)


def test_a_fault_of_chop_is_not_reported_as_a_hub_without_the_data(tmp_path, monkeypatch):
    def faulty(*args, **kwargs):
        raise ValueError("of chop")

    monkeypatch.setattr("datasets.load_dataset_builder", lambda name: name)
    monkeypatch.setattr("chop.data.load.check_hub_files", faulty)
    with pytest.raises(ValueError, match="^of chop"):
        load_dataset("some/name")


@pytest.mark.parametrize("fault", [TypeError, KeyError, OSError, ZeroDivisionError])
@pytest.mark.parametrize("name", ["load_dataset_builder", "DatasetBuilder.download_and_prepare"])
def test_a_fault_of_a_library_is_one_sentence(fault, name, tmp_path, monkeypatch):
    def faulty(*args, **kwargs):
        raise fault("of pandas")

    (tmp_path / "a.csv").write_text("a,label\n1,0\n2,1\n3,0\n")
    monkeypatch.setattr(f"datasets.{name}", faulty)
    with pytest.raises(ConfigError, match=r"a\.csv' cannot be read as csv: .*of pandas'?\.$"):
        load_dataset(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match=r"' cannot be read: .*of pandas'?\.$"):
        load_dataset(tmp_path)


def test_a_damaged_stream_of_gzip_is_one_sentence(tmp_path):
    text = "a,label\n" + "".join(f"{i * 7919},{i % 2}\n" for i in range(5000))
    packed = bytearray(gzip.compress(text.encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    (tmp_path / "a.csv.gz").write_bytes(packed)
    with pytest.raises(ConfigError, match=r"a\.csv\.gz' cannot be read as csv"):
        load_dataset(tmp_path / "a.csv.gz")


LATER = {
    "header": ("a,b,label\n1,2,0\n3,4,1\na,b,label\n5,6,0\n", r"row 3 repeats the .*\(line 4, if"),
    "text": (
        "a,label\n" + "1.5,0\n" * 20000 + "x,1\n" + "2.5,1\n" * 20000,
        "first rows are numbers has the text 'x' further down",
    ),
    "fraction": (
        "a,label\n" + "1,0\n" * 20000 + "2.5,1\n" * 20000,
        "first rows are whole numbers has 2.5 further down; write its first number .* 1.0",
    ),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # datasets leaves it open
@pytest.mark.parametrize(("text", "message"), LATER.values(), ids=LATER)
def test_a_row_of_another_kind_is_named(text, message, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_dataset(path)
    gc.collect()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "a datasets.DatasetDict, got None"),
        ({"train": [1, 2]}, "got a list as 'train'; .* arrays"),
        ({}, "got no split"),
        (Dataset.from_dict({"x": [1]}), "got Dataset; pass {.train.: it}"),
        ("https://example.com/a.csv", "URLs are not read; download"),
    ],
)
def test_what_are_no_splits_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        load_dataset(data)


DISGUISED = {
    "gzip": ("a.csv", gzip.compress(LINES.encode()), "holds gzip data"),
    "parquet": ("a.csv", b"PAR1\0\0", "holds a Parquet table"),
    "spreadsheet": ("a.csv", b"PK\x03\x04\0", "holds a zip archive or a spreadsheet"),
    "web page": ("a.csv", b"<html><body>404</body></html>\n", "holds a web page"),
    "pointer": ("a.csv", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "json": ("a.csv", b'[{"text": "good", "label": 1}]', "holds JSON"),
    "open quote": ("a.csv", f'{HEADER}{LINES}"good film,1\n'.encode(), "opened and not closed"),
    "large": ("a.csv", f"a,label\n{2**70},1\n".encode(), "whole numbers beyond 64 bits"),
    "columns": ("a.json", b'{"x": [1, 2, 3], "label": [0, 1, 0]}', "one record with lists"),
    "index": (
        "a.json",
        b'{"0": {"x": 1, "y": 0}, "1": {"x": 2, "y": 1}}',
        "or records \\(0",
    ),
    "cut": ("a.json", b'[{"text": "good", "la', "The file may be cut off"),
    "quotes": ("a.jsonl", b"{'text': 'good', 'label': 1}\n", "names in double quotes"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("case", DISGUISED)
def test_the_content_of_a_file_is_named(case, tmp_path, caplog, capfd):
    name, content, message = DISGUISED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_dataset(tmp_path / name)
    assert "Failed to" not in caplog.text + capfd.readouterr().err
    gc.collect()  # `datasets` leaves the file open


def test_columns_that_are_given_twice_are_reported(tmp_path):
    (tmp_path / "a.csv").write_text("a,a,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n")
    with collected_assumptions() as assumed:
        load_dataset(tmp_path / "a.csv")
    assert "the later columns are read as 'a.1'" in str(assumed)


FOLDERS = {
    "formats": (["train.csv", "test.jsonl"], r"several formats \('test.jsonl', 'train.csv'\)"),
    "separators": (["train.csv", "test.tsv"], "several formats"),
    "pictures": (["train/cat/1.heic", "train/dog/2.heic"], "2 files with format .heic"),
    "no suffix": (["train/cat/1", "train/dog/2"], "2 files with no suffix"),
    "capitals": (["Rows.CSV"], "'Rows.CSV', whose suffix .* rename it to 'Rows.csv'"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_formats_of_a_folder_that_are_not_read_are_named(case, tmp_path):
    names, message = FOLDERS[case]
    for name in (*names, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(HEADER + LINES)
    with pytest.raises(ConfigError, match=message):
        load_dataset(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("content", [HEADER, ""])
@pytest.mark.parametrize("name", ["train.csv", "test.csv"])
def test_the_file_of_a_folder_without_rows_is_named(name, content, tmp_path):
    for each in ("train.csv", "test.csv"):
        (tmp_path / each).write_text(content if each == name else HEADER + LINES)
    with pytest.raises(ConfigError, match=f"has no rows in .*{name[:4]}"):
        load_dataset(tmp_path)
    gc.collect()  # `datasets` leaves the file open


@pytest.mark.parametrize("name", ["Test.csv", "TEST/a.csv"])
def test_splits_in_capital_letters_are_refused(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for each in ("train.csv", name):
        (tmp_path / each).write_text(HEADER + LINES)
    with pytest.raises(ConfigError, match=f"'{name[:4]}.*rename it to 'test"):
        load_dataset(tmp_path)


def test_joined_files_are_reported(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(HEADER + LINES)
    with collected_assumptions() as assumed:
        assert len(load_dataset(tmp_path)["train"]) == 12
    assert "2 files are read as one table of training rows: 'a.csv', 'b.csv'" in str(assumed)


def test_files_of_a_folder_that_are_left_out_are_reported(tmp_path):
    for name in ("train.csv", "test.csv", "holdout.csv", "LICENSE", ".hidden"):
        (tmp_path / name).write_text(HEADER + LINES)
    with collected_assumptions() as assumed:
        load_dataset(tmp_path)
    assert [each.text.partition(". Table")[0] for each in assumed] == [
        f"Not read from '{tmp_path}': 'holdout.csv'"
    ]


WORDS = '{"tokens": ["a", "b"], "label": [0, 1]}\n'
CARD = "---\nconfigs:\n- config_name: all\n  data_files:\n" + "".join(
    f"  - split: {name.lower()}\n    path: {name}.csv\n" for name in ("Train", "Test")
)
USUAL = {
    "parts": {"0-of-2.csv": LINES, "1-of-2.csv": LINES},
    "parts of splits": {f"{name}/{i}.csv": LINES for name in ("train", "test") for i in (0, 1)},
    "other names of splits": {f"{x}-{i}.csv": LINES for x in ("train", "dev") for i in (0, 1)},
    "names in a card": {"README.md": f"{CARD}---\n", "Train.csv": LINES, "Test.csv": LINES},
    "one row of lists": {"train.jsonl": 4 * WORDS, "test.jsonl": WORDS},
    "files of the hub": dict.fromkeys(("LICENSE", "Thumbs.db", ".DS_Store"), "")
    | {"dataset_infos.json": "{}", "train.csv": LINES, "test.csv": LINES},
}


@pytest.mark.parametrize("case", USUAL)
def test_usual_folders_are_read_without_a_note(case, tmp_path):
    for name, text in USUAL[case].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(HEADER * name.endswith("csv") + text)
    with collected_assumptions() as assumed:
        assert len(load_dataset(tmp_path)["train"])
    assert all(each.about == SPLIT_OFF or "has no test rows" in each.text for each in assumed)


def test_texts_may_begin_as_a_web_page_and_columns_of_parquet_may_have_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("<!DOCTYPE html>\n" * 9)
    Dataset.from_dict({"a": [1, 2] * 4, "a.1": [1, 2] * 4, "label": [0, 1] * 4}).to_parquet(
        tmp_path / "a.parquet"
    )
    with collected_assumptions() as assumed:
        load_dataset(tmp_path / "a.txt", labeled=False), load_dataset(tmp_path / "a.parquet")
    assert {each.about for each in assumed} == {SPLIT_OFF}


def test_a_file_with_the_name_of_its_folder_is_no_script(tmp_path):
    (tmp_path / f"{tmp_path.name}.py").write_text("")
    (tmp_path / "train.csv").write_text(HEADER + LINES)
    with pytest.raises(ConfigError, match=r"has the name of the folder and would be a script"):
        load_dataset(tmp_path)
