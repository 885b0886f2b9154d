"""A data set's files stay in its folder, and unpack to a bounded size."""

import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chop.base.memory import memory_bytes
from chop.data import load_dataset, unpacked
from chop.data.confined import Home
from chop.data.load import _hub_caches
from chop.errors import ConfigError

ROWS = "a,b,label\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(40))
OUTSIDE = "outside its folder|URLs are not fetched"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a data set, beside a file that is none of its business."""
    (tmp_path / "secret.csv").write_text(ROWS)
    draw(tmp_path / "secret.png")
    found = tmp_path / "data"
    found.mkdir()

    def opened(*given, **settings):
        raise AssertionError(f"a connection is opened: {given}")

    monkeypatch.setattr("socket.socket.connect", opened)
    return found


def draw(path, size=(4, 4)):
    path.parent.mkdir(exist_ok=True, parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize(
    "files",
    [
        "../secret.csv",
        "{}/secret.csv",
        "[../*.csv]",
        "\n  - split: train\n    path: ../secret.csv",
        "data/../../secret.csv",
        "https://example.invalid/x.csv",
        "file://{}/secret.csv",
        "zip://x.csv::{}/secret.zip",
        "hf://datasets/x/y/z.csv",
        "zip://x.csv::../secret.zip",
        "zip://x.csv::https://example.invalid/x.zip",
        "../data/../secret.csv",
    ],
)
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_a_readme_names_no_files_elsewhere(files, card, folder):
    (folder / "train.csv").write_text(ROWS)
    text = f"configs:\n- config_name: default\n  data_files: {files.format(folder.parent)}\n"
    (folder / card).write_text(f"---\n{text}---\n" if card == "README.md" else text)
    with pytest.raises(ConfigError, match=OUTSIDE):
        load_dataset(folder)


def test_a_readme_names_no_folder_elsewhere(folder):
    (folder / "train.csv").write_text(ROWS)
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: x\n  data_dir: ..\n---\n")
    with pytest.raises(ConfigError, match=OUTSIDE):
        load_dataset(folder)


def test_a_readme_names_files_of_its_folder(folder):
    (folder / "part").mkdir()
    for name in ("one.csv", "two.csv"):
        (folder / "part" / name).write_text(ROWS)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: part/one.csv\n"
        f"  - split: test\n    path: {folder}/part/two.csv\n"
        "---\n# Title\n---\n../secret.csv\n"
    )
    found = load_dataset(folder)
    assert (len(found["train"]), len(found["test"])) == (40, 40)


def test_aliases_of_a_readme_are_visited_once(folder):
    (folder / "train.csv").write_text(ROWS)
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    (folder / "README.md").write_text(f"---\na0: &a0 x\n{bomb}configs: *a29\n---\n")
    with pytest.raises(ConfigError, match="its YAML expands to more than"):
        load_dataset(folder)


def test_a_link_out_of_the_folder_is_refused(folder):
    (folder / "train.csv").symlink_to(folder.parent / "secret.csv")
    with pytest.raises(ConfigError, match=OUTSIDE):
        load_dataset(folder)


def test_a_snapshot_of_the_hubs_cache_has_its_blobs(tmp_path):
    blob, link = tmp_path / "x/blobs/0", tmp_path / "x/snapshots/1/train.csv"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_text(ROWS)
    link.symlink_to("../../blobs/0")
    assert len(load_dataset(link.parent)["train"]) == 32
    (tmp_path / "short").symlink_to(link.parent)
    assert len(load_dataset(tmp_path / "short")["train"]) == 32


def rows_with(pictures, feature=None):
    kind = datasets.Features(
        {"image": feature or datasets.Image(), "label": datasets.Value("int64")}
    )
    return datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 2}, kind)


def save(pictures, folder):
    """Writes what `save_to_disk` would, where the pictures need not be there."""
    struct = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    rows_with(pictures, struct).save_to_disk(folder)
    info = json.loads((folder / "dataset_info.json").read_text())
    info["features"]["image"] = {"_type": "Image"}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def paths(path):
    return [{"bytes": None, "path": str(path)}] * 4


@pytest.mark.parametrize("kind", ["file", "folder", "saved", "saved splits"])
@pytest.mark.parametrize("name", ["{}/secret.png", "https://example.invalid/x.png", "link.png"])
def test_pictures_elsewhere_are_not_opened(kind, name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("link.png").symlink_to(folder.parent / "secret.png")
    pictures = paths(name.format(folder.parent))
    if kind == "saved":
        save(pictures, folder)
    elif kind == "saved splits":
        save(pictures, folder / "train")
        Path("dataset_dict.json").write_text('{"splits": ["train"]}')
    else:
        pq.write_table(rows_with(pictures).data.table, folder / "train.parquet")
    with pytest.raises(ConfigError, match=f"column 'image' names .*({OUTSIDE})"):
        load_dataset(folder / "train.parquet" if kind == "file" else folder)


def test_pictures_inside_other_columns_are_found(folder):
    feature = datasets.List({"x": datasets.List(datasets.Image())})
    pictures = [[{"x": paths(folder.parent / "secret.png")}]] * 4
    rows_with(pictures, feature).to_parquet(folder / "train.parquet")
    with pytest.raises(ConfigError, match="a row of its column 'image'"):
        load_dataset(folder)


def test_a_readme_makes_no_texts_to_pictures_elsewhere(folder):
    (folder / "train.csv").write_text(
        "image,label\n" + f"{folder.parent}/secret.png,0\n{folder.parent}/secret.png,1\n" * 4
    )
    (folder / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\n"
        "  - name: label\n    dtype: int64\n---\n"
    )
    with pytest.raises(ConfigError, match="a row of its column 'image'"):
        load_dataset(folder)


def test_metadata_of_pictures_name_none_elsewhere(folder):
    draw(folder / "train/1.png")
    lines = [json.dumps({"file_name": f"../../{name}", "label": 0}) for name in ("secret.png",)]
    (folder / "train/metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError):
        load_dataset(folder)


def test_pictures_of_the_folder_and_of_archives_are_read(folder):
    draw(folder / "1.png")
    stored = io.BytesIO((folder / "1.png").read_bytes()).getvalue()
    rows = rows_with([*paths(folder / "1.png")[:2], *[{"bytes": stored, "path": "/x/1.png"}] * 2])
    rows.to_parquet(folder / "train.parquet")
    assert load_dataset(folder / "train.parquet")["train"][0]["image"].size == (4, 4)
    (folder / "train.parquet").unlink()
    with zipfile.ZipFile(folder / "train.zip", "w") as archive:
        for i in range(4):
            archive.writestr(f"{i}.png", stored)
        lines = [json.dumps({"file_name": f"{i}.png", "label": i % 2}) for i in range(4)]
        archive.writestr("metadata.jsonl", "\n".join(lines))
    (folder / "1.png").unlink()
    assert load_dataset(folder)["train"][0]["image"].size == (4, 4)


@pytest.mark.parametrize("file", ["../../secret.arrow", "{}/secret.arrow"])
def test_saved_data_sets_name_no_files_elsewhere(file, folder):
    save(paths("1.png"), folder)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"] = [{"filename": file.format(folder.parent)}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match=OUTSIDE):
        load_dataset(folder)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["../x"]}))
    with pytest.raises(ConfigError, match=OUTSIDE):
        load_dataset(folder)


def bomb(kind, folder):
    """A small file that unpacks to a great deal."""
    lines = b"a,label\n" + b"1,0\n" * (12 * 2**20)
    path = folder / f"train.csv.{kind}"
    if kind == "parquet":
        path = folder / "train.parquet"
        ones = pa.array(np.ones(20_000_000, np.int64))
        pq.write_table(pa.table({"a": ones, "label": ones}), path, row_group_size=20_000_000)
    elif kind == "texts.parquet":
        path = folder / kind
        texts = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), ["x" * 10**6])
        pq.write_table(pa.table({"text": texts}), path, store_schema=False)
    elif kind == "zip":
        with zipfile.ZipFile(folder / "train.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train.csv", lines)
        return folder / "train.zip"
    elif kind == "hidden":  # a name that tells nothing
        path = folder / "train.csv"
        path.write_bytes(gzip.compress(lines))
    else:
        path.write_bytes({"gz": gzip, "xz": lzma}[kind].compress(lines))
    return path


LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("xz", "zip", "hidden")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["gz", "parquet", "texts.parquet", *LONG])
def test_a_small_file_does_not_unpack_to_a_large_one(kind, folder, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(folder.parent / "cache"))
    path = bomb(kind, folder)
    with pytest.raises(ConfigError, match=f"'.*{path.name}' unpacks to more than .* MiB"):
        load_dataset(folder)
    cache = folder.parent / "cache"
    assert sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) < 10**5
    if kind not in ("zip", "hidden"):
        with pytest.raises(ConfigError, match="unpacks to more than"):
            load_dataset(path)


@pytest.mark.parametrize("pattern", ["{}", "[{}]", "nested", "escaped", "gz"])
def test_keys_of_json_are_no_columns_without_end(pattern, folder):
    rows = [f'{{"k{i}": {i}, "label": {i % 2}}}' for i in range(4000)]
    if pattern == "nested":
        rows = [f'{{"x": {row}, "label": 0}}' for row in rows]
    if pattern == "escaped":
        rows = [row.replace('": ', '\\"k": ', 1) for row in rows]
    text = f"[{', '.join(rows)}]" if pattern == "[{}]" else "\n".join(rows)
    name = "train.jsonl.gz" if pattern == "gz" else "train.jsonl"
    (folder / name).write_bytes(gzip.compress(text.encode()) if pattern == "gz" else text.encode())
    with pytest.raises(ConfigError, match="4,.* different keys in [48],000 objects"):
        load_dataset(folder)


def test_rows_of_json_with_other_keys_are_read(folder):
    rows = [{"a": i, f"k{i % 50}": 'x, {"y": 1}', "label": i % 2} for i in range(400)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(load_dataset(folder)["train"]) == 320


def test_all_files_together_unpack_to_the_memory_at_most(folder, monkeypatch):
    for name in ("train", "test"):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    assert len(load_dataset(folder)["test"]) == 40
    monkeypatch.setattr(unpacked, "memory_bytes", lambda: int(1.5 * len(ROWS)))
    files = sorted(folder.glob("*.gz"))
    unpacked.check_unpacked(files[:1])
    with pytest.raises(ConfigError, match="more than the memory"):
        unpacked.check_unpacked(files)


def test_ordinary_files_are_within_their_bounds(tmp_path):
    draws = np.random.default_rng(0)
    zeros = (draws.random((20_000, 50)) < 0.01).astype(np.int64)
    words = pa.array([f"word {i % 500}" for i in range(20_000)])
    table = pa.table({f"c{i}": zeros[:, i] for i in range(50)} | {"text": words})
    pq.write_table(table, tmp_path / "a.parquet")
    table.to_pandas().to_csv(tmp_path / "a.csv.gz", index=False)
    (tmp_path / "broken.csv.gz").write_bytes(b"\x1f\x8bbroken")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1broken")
    unpacked.check_unpacked([*tmp_path.iterdir(), tmp_path / "none"])


def test_the_memory_is_that_of_the_machine_or_of_a_limit(monkeypatch, tmp_path):
    assert 2**28 < memory_bytes() < 2**50
    (tmp_path / "max").write_text("12345\n")
    monkeypatch.setattr("chop.base.memory.LIMITS", [str(tmp_path / "none"), str(tmp_path / "max")])
    assert memory_bytes() == 12345


@pytest.mark.parametrize(
    "name", ["huggingface_hub.constants.HF_HUB_CACHE", "datasets.config.HF_DATASETS_CACHE"]
)
def test_files_of_the_hub_may_be_in_each_of_its_caches(name, tmp_path, monkeypatch):
    picture = str(tmp_path / "own" / "blobs" / "a.png")
    with pytest.raises(ConfigError, match=OUTSIDE):
        Home(_hub_caches(), "set").check(picture, "a row")
    monkeypatch.setattr(name, str(tmp_path / "own"))
    Home(_hub_caches(), "set").check(picture, "a row")
