"""Damaged files of every reader are one sentence that names the file, or are read as they are."""

import io
import json
import logging
import shutil
import time
import warnings

import pytest
import torch
from torch import nn

from chop import runs
from chop.actions.compress.earlier_run import compressed_run
from chop.base.files import write_text
from chop.config import load_toml
from chop.data import load_dataset
from chop.data.tokenizer import encode, find_processor, get_tokenizer
from chop.distributed.plan import ShardingPlan
from chop.errors import ChopError
from chop.ir.graph import MaseGraph
from chop.ir.storage.tensor_store import read_file
from chop.lora.peft_format import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from chop.models import load_model
from chop.models.weights import load_weights
from chop.report.document import read_document
from chop.report.ui.folder import RunsFolder
from chop.runs.interrupt import describe_saved_points
from chop.runs.journal import Journal
from tests.base.files.mutants import MUTATIONS, Reader
from tests.export.gguf import gguf_bytes
from tests.limits import within
from tests.subcases import subcases

# Libraries leave files open that they cannot read, until garbage is collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS = 30
ROW = "good film,1\nbad film,0\n"


def _run(folder):
    with runs.start("compress", {"model": "bert-tiny", "out": str(folder)}, folder) as run:
        write_text(folder / "table.md", "table")
        run.rows = [{"width": 4, "accuracy": 0.5}, {"width": 8, "accuracy": 0.75}]


def _report(folder):
    document = {"title": "t", "blocks": [{"text": "a", "level": 1}], "format": 1}
    (folder / "report.json").write_text(json.dumps(document))


def _journal(folder):
    journal = Journal(folder / "points.jsonl")
    for width in range(5):
        journal.add({"width": width}, {"accuracy": width / 10, "rows": [1, {"a": None}]})


def _plan(folder):
    ShardingPlan((2,), {"fc.weight": ("S0",)}, {"add": {"fc": ("R",)}}).write(folder / "plan.json")


def _adapter(folder):
    tensors = {f"base_model.model.fc.lora_{x}.weight": torch.ones(2, 2) for x in "AB"}
    _save(tensors, folder / WEIGHTS_FILE)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["fc"]}
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def _save(tensors, path):
    from safetensors.torch import save_file

    save_file(tensors, path)


def _graph(folder):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    MaseGraph(model, dummy_in={"input": torch.ones(2, 4)}).export(folder / "a")


def _weights(folder):
    state = nn.Linear(4, 4).state_dict()
    torch.save(state, folder / "a.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    _save(state, folder / "a.safetensors")


def _model(folder):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 120}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**sizes, num_attention_heads=2))
    model.save_pretrained(folder)
    get_tokenizer("reviews").save_pretrained(folder)


def _sharded(folder):
    _model(folder)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = read_file(folder / "a.safetensors").keys()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "a.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _llama(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 20}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained(folder)


def _pickled(folder):
    _model(folder)
    torch.save(read_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _tables(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "a.csv").write_text("text,label\n" + ROW * 10)
    rows = [{"text": "a", "label": n % 2, "more": {"x": [n]}} for n in range(10)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    pq.write_table(pa.table({"text": ["a", "b"] * 10, "label": [0, 1] * 10}), folder / "a.parquet")


def _saved(folder):
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"text": ["a", "b"] * 10, "label": [0, 1] * 10})
    DatasetDict(train=rows, test=rows).save_to_disk(folder / "set")


def _picture(folder):
    from PIL import Image

    Image.new("RGB", (8, 8), (1, 2, 3)).save(folder / "a.png")


def _decode(path):
    from datasets import Image

    from chop.data.pictures import decoded

    return decoded({"path": str(path), "bytes": None}, Image()).load()


def _tokens(folder):
    return encode(get_tokenizer(str(folder)), "a good film", truncation=True)


def _written(name, text):
    return lambda folder: (folder / name).write_text(text)


def _gguf(folder):
    (folder / "a.gguf").write_bytes(gguf_bytes.llama().content())


READERS = {
    "manifest": Reader(_run, "manifest.json", runs.read_manifest),
    "compressed": Reader(_run, "manifest.json", compressed_run),
    "ui": Reader(_run, "manifest.json", lambda folder: RunsFolder(folder).runs()),
    "report": Reader(_report, "report.json", read_document),
    "journal": Reader(
        _journal, "points.jsonl", lambda folder: Journal(folder / "points.jsonl").find({"width": 3})
    ),
    "journal_write": Reader(
        _journal, "points.jsonl", lambda folder: Journal(folder / "points.jsonl").add({}, {})
    ),
    "interrupted": Reader(
        _journal, "points.jsonl", lambda folder: describe_saved_points(folder / "points.jsonl")
    ),
    "settings": Reader(
        _written("a.toml", 'model = "bert-tiny"\n[a.b]\nc = [1, 2]\n'),
        "a.toml",
        lambda folder: load_toml(folder / "a.toml"),
    ),
    "plan": Reader(_plan, "plan.json", lambda folder: ShardingPlan.read(folder / "plan.json")),
    "adapter_config": Reader(_adapter, CONFIG_FILE, read_adapter),
    "adapter": Reader(_adapter, WEIGHTS_FILE, read_adapter),
    "graph": Reader(_graph, "a.mz", lambda folder: MaseGraph.from_checkpoint(folder / "a")),
    "graph_tensors": Reader(_graph, "a.pt", lambda folder: MaseGraph.from_checkpoint(folder / "a")),
    "weights": Reader(
        _weights, "a.pt", lambda folder: load_weights(nn.Linear(4, 4), folder / "a.pt")
    ),
    "old_weights": Reader(
        _weights, "old.pt", lambda folder: load_weights(nn.Linear(4, 4), folder / "old.pt")
    ),
    "safetensors": Reader(
        _weights,
        "a.safetensors",
        lambda folder: load_weights(nn.Linear(4, 4), folder / "a.safetensors"),
    ),
    "config": Reader(_model, "config.json", lambda folder: load_model(str(folder))),
    "config_labels": Reader(
        _model, "config.json", lambda folder: load_model(str(folder), num_labels=3)
    ),
    "model": Reader(_model, "model.safetensors", lambda folder: load_model(str(folder))),
    "index": Reader(
        _sharded, "model.safetensors.index.json", lambda folder: load_model(str(folder))
    ),
    "shard": Reader(_sharded, "a.safetensors", lambda folder: load_model(str(folder))),
    "pickled": Reader(_pickled, "pytorch_model.bin", lambda folder: load_model(str(folder))),
    "generation": Reader(_llama, "generation_config.json", lambda folder: load_model(str(folder))),
    "tokenizer": Reader(_model, "tokenizer.json", _tokens),
    "tokenizer_config": Reader(_model, "tokenizer_config.json", _tokens),
    "processor": Reader(_model, "tokenizer.json", lambda folder: find_processor(str(folder))),
    "gguf": Reader(_gguf, "a.gguf", lambda folder: load_model(str(folder / "a.gguf"))),
    "csv": Reader(_tables, "a.csv", lambda folder: load_dataset(str(folder / "a.csv"))),
    "jsonl": Reader(_tables, "a.jsonl", lambda folder: load_dataset(str(folder / "a.jsonl"))),
    "parquet": Reader(_tables, "a.parquet", lambda folder: load_dataset(str(folder / "a.parquet"))),
    "saved_state": Reader(
        _saved, "set/train/state.json", lambda folder: load_dataset(str(folder / "set"))
    ),
    "saved_info": Reader(
        _saved, "set/train/dataset_info.json", lambda folder: load_dataset(str(folder / "set"))
    ),
    "saved_rows": Reader(
        _saved,
        "set/train/data-00000-of-00001.arrow",
        lambda folder: load_dataset(str(folder / "set"))["train"][:],
    ),
    "picture": Reader(_picture, "a.png", lambda folder: _decode(folder / "a.png")),
}
OPTIONAL = {"picture": "PIL", "gguf": "gguf"}


@pytest.fixture(scope="module")
def well_formed(tmp_path_factory):
    """The well-formed files of a reader, made once."""
    made = {}

    def folder(reader):
        if reader.files not in made:
            made[reader.files] = tmp_path_factory.mktemp("files")
            reader.files(made[reader.files])
        return made[reader.files]

    return folder


@subcases("damage", MUTATIONS.values(), ids=MUTATIONS, kept=4)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_sentence(name, damage, well_formed, tmp_path, monkeypatch):
    pytest.importorskip(OPTIONAL.get(name, "torch"))
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    reader, folder = READERS[name], tmp_path / "named_folder"
    shutil.copytree(well_formed(reader), folder)
    damage(folder / reader.name)
    shown, start = io.StringIO(), time.monotonic()
    logging.getLogger("chop").addHandler(handler := logging.StreamHandler(shown))
    try:
        with warnings.catch_warnings(), within(SECONDS):
            warnings.simplefilter("ignore")
            reader.read(folder)
    except ChopError as error:
        message = str(error)
        assert "\n" not in message and 20 < len(message) <= 2000
        assert "named_folder" in message or reader.name in message
    finally:
        logging.getLogger("chop").removeHandler(handler)
    assert "Traceback" not in shown.getvalue()
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("name", READERS)
def test_a_well_formed_file_is_read(name, well_formed, tmp_path, monkeypatch):
    pytest.importorskip(OPTIONAL.get(name, "torch"))
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "folder"
    shutil.copytree(well_formed(READERS[name]), folder)
    assert READERS[name].read(folder) is not None
