"""Every reader of JSON and TOML says what is wrong with a file in one sentence."""

import json

import pytest

from chop import runs
from chop.actions.compress.earlier_run import compressed_run
from chop.actions.search.several import _best
from chop.base.files.documents import DEEPEST, parse_json
from chop.config import load_toml
from chop.distributed.plan import ShardingPlan
from chop.distributed.weight_files import INDEX, stored_tensors
from chop.errors import ChopError, ConfigError
from chop.formats.format_strings import parse_format_string
from chop.hardware.check.project import DESIGN, read_project
from chop.ir.storage.document import read_document
from chop.ir.storage.metadata_file import _parse as read_metadata
from chop.lora.peft_format import CONFIG_FILE
from chop.lora.peft_format import _read_config as read_adapter
from chop.models.load import read_config
from chop.problems.mixed_precision.warm_start import cached
from chop.runs.journal import Journal
from chop.search.ledger import Row
from chop.workloads.pictures import _read_json as read_preprocessor
from tests.subcases import subcases

BROKEN = {
    "deep": b"[" * 10**5,
    "closed": b"[" * 10**5 + b"]" * 10**5,
    "deep_objects": b'{"a":' * 10**4 + b"1" + b"}" * 10**4,
    "deep_value": b'{"format": ' + b"[" * 300 + b"]" * 300 + b"}",
    "long_integer": b'{"format": ' + b"1" * 6000 + b"}",
    "wide_integer": b'{"format": ' + b"1" * 1400 + b"}",
    "array": b"[]",
    "text": b'"format"',
    "null": b"null",
    "twice": b'{"format": 1, "format": 1}',
    "twice_inside": b'{"format": {"a": 1, "a": 2}}',
    "binary": b'{"format": "\xff\xfe"}',
    "half_a_character": b'{"format": "\\ud800"}',
    "cut": b'{"format": 1, ',
    "empty": b"",
}
READERS = {
    "manifest": (runs.MANIFEST, runs.read_manifest),
    "design": (DESIGN, read_project),
    "plan": ("plan.json", lambda folder: ShardingPlan.read(folder / "plan.json")),
    "adapter": (CONFIG_FILE, read_adapter),
    "metadata": ("meta.json", lambda folder: read_metadata(folder / "meta.json")),
    "checkpoint": ("a.mz", lambda folder: read_document(folder / "a.mz")),
    "hf_index": (INDEX, lambda folder: list(stored_tensors(folder))),
    "hf_config": ("config.json", lambda folder: read_config(str(folder))),
    "preprocessor": ("p.json", lambda folder: read_preprocessor(folder / "p.json")),
    "compressed": ("result.json", compressed_run),
    "best": ("best.json", _best),
    "trial": (
        "document",
        lambda folder: (
            Row(1, None, "measured", "", 1, 0, (folder / "document").read_bytes()).parsed  # type: ignore[arg-type]
        ),
    ),
}


@subcases("content", BROKEN.values(), ids=BROKEN)
@subcases("name, read", READERS.values(), ids=READERS)
def test_a_broken_document_is_one_sentence(name, read, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ChopError) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert name in str(caught.value) or name == "document"


@subcases("content", BROKEN.values(), ids=BROKEN)
def test_what_is_kept_to_save_time_is_made_again(content, tmp_path):
    path = tmp_path / "cached.json"
    path.write_bytes(content)
    assert cached(path, {"of": 1}, lambda: {"a": {"x": 1}}) == {"a": {"x": 1}}
    journal = tmp_path / "journal"
    good = Journal(journal)
    good.add({"width": 4}, {"accuracy": 0.5})
    with journal.open("ab") as file:
        file.write(content.replace(b"\n", b"") + b"\n")
    assert Journal(journal).find({"width": 4}) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 10**4,
        b"a = " + b"{b = " * 10**4,
        b"a = " + b"1" * 6000,
        b"a = " + b"1" * 1400,
        b"a = 1\na = 2",
        b"[a]\n[a]",
        b"a = '\xff'",
        b"a = " + b"[" * 250 + b"]" * 250,
    ],
)
def test_a_broken_toml_file_is_one_sentence(content, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config file '.*run.toml' is not valid TOML: "):
        load_toml(path)


def test_what_is_within_bounds_is_as_json_has_it():
    document = {"a": [1, -(2**63), 2**63, 1.5, None, True, "é😀"], "b": {"c": []}}
    assert parse_json(json.dumps(document)) == document
    nested = []
    for _ in range(DEEPEST - 2):
        nested = [nested]
    assert parse_json(json.dumps(nested), list) == nested
    assert parse_json("7", None) == 7
    with pytest.raises(ConfigError, match="expected an array, got an object"):
        parse_json("{}", list)


def test_values_of_options_may_be_any_text():
    with pytest.raises(ConfigError):
        parse_format_string("integer:width=" + "[" * 10**5)


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "a/b.safetensors", 7])
def test_an_index_names_files_of_its_folder(file, tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": file}}))
    with pytest.raises(ChopError, match="is not a valid index of weights"):
        list(stored_tensors(tmp_path))


def test_a_repeated_key_among_many_is_found_at_once():
    keys = ",".join(f'"{number}": 1' for number in range(10**5))
    with pytest.raises(ConfigError, match="the key '77' occurs twice"):
        parse_json('{"first": 1,' + keys + ', "77": 2}')


@pytest.mark.parametrize(
    "values",
    ['{"model_type": "bert", "hidden_size": "sixteen"}', '{"model_type": 4}',
     '{"model_type": "llama", "intermediate_size": [1]}'],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_one_sentence(values, tmp_path):
    (tmp_path / "config.json").write_text(values)
    with pytest.raises(ConfigError, match="contains no known model"):
        read_config(str(tmp_path))
