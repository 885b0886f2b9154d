"""The folder for transformers beside the checkpoint of a job."""

import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import chop.workloads.hf_folder as hf_folder
from chop import MaseGraph
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.data import get_tokenizer, load_dataset
from chop.errors import WriteError
from chop.runs import read_manifest

QUICK = {"bench_seconds": 0, "qat_epochs": 0, "keep_best": True, "force": True}
QUICK["formats"] = ("mxint",)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The settings of a job on a decoder in a folder."""
    home = tmp_path_factory.mktemp("decoder")
    get_tokenizer("reviews").save_pretrained(home / "model")
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=64, vocab_size=200, **ends)
    GPT2LMHeadModel(config).save_pretrained(home / "model")
    rows = load_dataset("reviews", limit=12)["train"].remove_columns("label")
    rows.to_parquet(home / "train.parquet")
    return {"model": str(home / "model"), "dataset": str(home / "train.parquet"), **QUICK}


def test_a_decoder_is_compressed_to_a_folder_that_transformers_loads(job, tmp_path, capsys):
    info = compress(CompressConfig(out=tmp_path, **job))
    assert info["why_no_folder"] is None
    ids = torch.randint(0, 200, (2, 8))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    saved = MaseGraph.from_checkpoint(tmp_path / "model").model
    inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    assert torch.equal(model(ids, **inputs).logits, saved(ids, **inputs).logits)
    tokenizers = [AutoTokenizer.from_pretrained(x) for x in (tmp_path / "model", job["model"])]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
    assert info["packed_share"] > 0.95
    assert {row["kind"] for row in info["float_layers"]} == {"LayerNorm"}
    # 8.25 bits for what is packed, and a float32 each for the norms.
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    stored = sum(x.nbytes for x in tensors.values())
    count = sum(x.numel() for x in GPT2LMHeadModel.from_pretrained(job["model"]).parameters())
    floats = (1 - info["packed_share"]) * count
    assert stored == pytest.approx((count - floats) * 8.25 / 8 + floats * 4, rel=0.01)
    printed = " ".join(capsys.readouterr().out.split())
    assert "parameters are packed" in printed
    table = (tmp_path / "table.md").read_text()
    assert (
        "% of the parameters are packed" in table
        and "of 3 LayerNorm (transformer.h.0.ln_1" in table
    )
    assert "of transformers, after import chop" in printed


def test_models_of_others_get_none_and_say_so(tmp_path):
    (tmp_path / "model").mkdir()
    info = compress(CompressConfig(model="mlp", out=tmp_path, **QUICK))
    assert info["why_no_folder"] == "DigitsMLP is not a Hugging Face model"
    assert not (tmp_path / "model").exists()


@pytest.mark.long
def test_a_folder_that_cannot_be_written_leaves_an_earlier_one(job, tmp_path, monkeypatch):
    compress(CompressConfig(out=tmp_path, **job))
    files = [tmp_path / "model" / "config.json", tmp_path / "model.mz"]
    before = [file.read_text() for file in files]

    def fail(*_):
        raise WriteError("the disk is full")

    monkeypatch.setattr(hf_folder.shutil, "move", fail)
    with pytest.raises(WriteError):
        compress(CompressConfig(out=tmp_path, **{**job, "formats": ("mxint:width=4",)}))
    assert [file.read_text() for file in files] == before


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.long
def test_the_folder_and_the_other_results_are_of_one_run(job, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    settings = {**job, "out": tmp_path}
    compress(CompressConfig(**settings))
    before, other = contents(tmp_path), {**settings, "formats": ("mxint:width=4",)}
    with monkeypatch.context() as patch:
        patch.setattr("chop.actions.job.write_report", stop)
        with pytest.raises(KeyboardInterrupt):
            compress(CompressConfig(**other))
    assert contents(tmp_path) == before
    compress(CompressConfig(**other))
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert after["model/model.safetensors"] != before["model/model.safetensors"]
    artifacts = {artifact.path for artifact in read_manifest(tmp_path).artifacts}
    assert artifacts == {*after}


@pytest.mark.long
def test_a_full_disk_is_told_and_is_no_reason_to_go_on_without_the_folder(
    job, tmp_path, monkeypatch
):
    def full(*_):
        raise WriteError("the disk is full")

    monkeypatch.setattr(hf_folder, "write_folder", full)
    with pytest.raises(WriteError, match="the disk is full"):
        compress(CompressConfig(out=tmp_path, **job))
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.long
def test_a_card_that_somebody_edited_stays_in_the_folder_of_a_second_run(job, tmp_path):
    compress(CompressConfig(out=tmp_path, **job))
    card = tmp_path / "model" / "README.md"
    assert "| calibration data | none |" in card.read_text()
    card.write_text(card.read_text() + "\nMy notes.\n")
    edited = card.read_text()
    compress(CompressConfig(out=tmp_path, **{**job, "method": ("gptq",)}))
    assert card.read_text() == edited
    card.unlink()
    compress(CompressConfig(out=tmp_path, **{**job, "method": ("gptq",)}))
    assert re.search(r"\| calibration data \| \d+ training rows of ", card.read_text())
