"""Model cards: metadata for the hub, facts about the model, and cards that somebody edited."""

import copy
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load, load_file
from transformers import LlamaForCausalLM

from chop import passes
from chop.export.targets import TARGETS
from chop.ir.huggingface.card import CardFacts, add_rows, card_rows, code, is_own, write_card
from chop.ir.huggingface.folder import note_formats
from tests.export.decoders import captured, quantized

FORMATS = {"linear": "group_integer:width=4", "embedding": "mxint:width=8"}
BASE_CARD = """---
license: other
license_name: tiny-license
base_model:
- org/first
tags: [a, b]
---
text
license: mit
"""


FIRST_CARD = """---
library_name: transformers
tags: [chop, quantized]
---

# A, quantized by chop

warning. `chop export FOLDER --to TARGET` writes the model for engines that do not have chop.
"""


@pytest.fixture(scope="module")
def packed():
    mg = quantized(captured("Llama", True), {**FORMATS})
    return passes.pack_transform_pass(mg, {"silent": True})[0]


@pytest.fixture(scope="module")
def written(packed, tmp_path_factory):
    """A folder of chop, which no test changes."""
    folder = tmp_path_factory.mktemp("card") / "model"
    packed.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "model")


def data(folder):
    """The metadata of a card, as the hub reads it."""
    return ModelCard.load(folder / "README.md").data.to_dict()


def test_a_saved_folder_has_a_card(written):
    assert data(written) == {"library_name": "transformers", "tags": ["chop", "quantized"]}
    rows = card_rows(written / "README.md")
    assert rows["architecture"] == "LlamaForCausalLM"
    assert rows["format"].startswith("group_integer(width=4) in 8 modules, mxint")
    size = (written / "model.safetensors").stat().st_size
    assert rows["size of the weights"] == f"{size / 1000:,.1f} kB"
    assert 4 < float(rows["bits per weight"]) < 9 and "transformers 5" in rows["versions"]
    assert "import chop" in (written / "README.md").read_text() and is_own(written / "README.md")


def test_a_card_shares_license_and_base_of_a_local_model(folder, tmp_path):
    base = tmp_path / "tiny-base"
    base.mkdir()
    (base / "README.md").write_text(BASE_CARD)
    write_card(folder, CardFacts(base=str(base)))
    found = data(folder)
    assert found["base_model"] == "org/first" and "base_model_relation" not in found
    assert found["license"] == "other" and found["license_name"] == "tiny-license"
    write_card(folder, CardFacts(base=str(tmp_path / "without card")))
    assert "license" not in data(folder) and "base_model" not in data(folder)
    assert card_rows(folder / "README.md")["base model"] == "without card"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "metadata, shared",
    [
        ("license: my own license", {"license": "my own license"}),
        ("license: [mit, apache-2.0]", {"license": "mit"}),
        ("license: 'mit'  # free", {"license": "mit"}),
        ("license: Lizenz-\u00fc", {"license": "Lizenz-\u00fc"}),
        ("license_link: https://a.b/c?x=1&y=2", {"license_link": "https://a.b/c?x=1&y=2"}),
        ("license: null\nbase_model: {a: b}", {}),
        ("license: !!python/object:os.system x", {}),
        ("license: [[[", {}),
        ("license: " + "[" * 100_000, {}),
        ("- license", {}),
    ],
)
def test_shared_metadata_is_parsed_as_yaml(folder, tmp_path, metadata, shared):
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf-8")
    write_card(folder, CardFacts(base=str(base)))
    keys = ("license", "license_link", "base_model")
    assert {key: x for key, x in data(folder).items() if key in keys} == shared


@pytest.mark.parametrize(
    "name", ["a: b | c", "new\nline # x", "<!-- x", "# `tick`", "{name} \u00fc"]
)
def test_any_folder_name_is_a_title_and_a_row(folder, tmp_path, name):
    write_card(
        folder, CardFacts(base=str(tmp_path / name), rows={"command": code(f"chop '{name}'")})
    )
    text, line = (folder / "README.md").read_text(), " ".join(name.split())
    (title,) = [x for x in text.splitlines() if x.startswith("# ")]
    rows = card_rows(folder / "README.md")
    assert title == f"# {line}, quantized by chop".replace("|", r"\|").replace("<", r"\<")
    assert rows["base model"] == line and f"chop '{line}'" in rows["command"]
    assert is_own(folder / "README.md") and data(folder)["library_name"] == "transformers"


def test_code_spans_have_a_longer_fence_than_their_text():
    assert code("chop a") == "`chop a`"
    assert code("a `b` ``c") == "``` a `b` ``c ```"


@pytest.mark.parametrize("name, license_name", [("README.md", "apache-2.0"), ("config.json", None)])
def test_a_hub_model_is_the_base(folder, tmp_path, monkeypatch, name, license_name):
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("chop.base.hub.hub_is_reachable", lambda: False)
    home = cache / "models--org--tiny"
    for path, text in {
        "refs/main": "abc",
        "snapshots/abc/config.json": "{}",
        f"snapshots/abc/{name}": "---\nlicense: apache-2.0\n---\n",
    }.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    write_card(folder, CardFacts(base="org/tiny"))
    found = data(folder)
    assert (found["base_model"], found["base_model_relation"]) == ("org/tiny", "quantized")
    assert found.get("license") == license_name
    write_card(folder, CardFacts(base="org/other"))
    assert "base_model" not in data(folder)  # nothing shows that it is on the hub


def test_a_card_of_somebody_else_stays(packed, folder):
    card = folder / "README.md"
    edited = (f"{text}\nMy measurements." for text in (FIRST_CARD, card.read_text()))
    for text in ("mine", "See tags: [chop, quantized] above.", *edited, card.read_text() + "x"):
        card.write_text(text)
        packed.save_pretrained(folder)
        add_rows(folder, {"method": "x"}, "")
        assert card.read_text() == text and not is_own(card)


@pytest.mark.parametrize("ends", ["lines", "carriage returns", "first version"])
def test_a_card_of_chop_is_replaced(packed, folder, ends):
    card = folder / "README.md"
    text = card.read_text()
    if ends == "first version":
        card.write_text(FIRST_CARD)
    elif ends == "carriage returns":
        card.write_bytes(text.replace("\n", "\r\n").encode())
    assert is_own(card)
    packed.save_pretrained(folder)
    assert card.read_text() == text


def test_rows_survive_bars_and_lines(folder):
    rows = {"command": "`chop a | b`", "method": "two\nlines", "empty": ""}
    add_rows(folder, rows, "")
    found = card_rows(folder / "README.md")
    assert found["command"] == "`chop a | b`" and found["method"] == "two lines"
    assert "empty" not in found and found["format"].startswith("group_integer")
    assert [*found].index("method") < [*found].index("bits per weight")


@pytest.mark.long
def test_a_folder_that_transformers_does_not_read_names_chop(tmp_path):
    mg = quantized(captured("Llama"), {"model.layers.0.self_attn.o_proj": "nvfp4"}, by="name")
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    TARGETS["modelopt"].export(mg, tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    assert "vllm serve" in text and 'load_model("FOLDER")' in text
    assert "pip install modelopt" not in text and "from_pretrained" not in text


@pytest.mark.long
@pytest.mark.parametrize("name, package", [("compressed-tensors", None), ("gptq", "gptqmodel")])
def test_folders_of_other_tools_have_a_card(tmp_path, name, package):
    mg = quantized(captured("Llama"), {"linear": "group_integer:width=4"})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    written = TARGETS[name].export(mg, tmp_path / "model")
    assert tmp_path / "model" / "README.md" in written.files
    assert data(tmp_path / "model")["tags"] == ["chop", "quantized", name]
    text = (tmp_path / "model" / "README.md").read_text()
    assert f"pip install {package or name}" in text and "vllm serve" in text
    assert "import chop" not in text
    (tmp_path / "model" / "README.md").write_text("mine")
    TARGETS[name].export(mg, tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "mine"


@pytest.fixture
def hub(monkeypatch):
    """A hub that keeps what is uploaded, and may have a card."""
    seen = SimpleNamespace(files={}, message="", card=None)

    def commit(self, repo_id, operations, commit_message, **kwargs):
        seen.message = commit_message
        for each in operations:
            with each.as_file() as file:
                seen.files[each.path_in_repo] = file.read()
        return f"https://hub/{repo_id}"

    def card(*args, **kwargs):
        if seen.card is None:
            response = SimpleNamespace(headers={}, request=None, status_code=404)
            raise huggingface_hub.errors.EntryNotFoundError("no card", response)
        return ModelCard(seen.card)

    url = SimpleNamespace(repo_id="me/tiny")
    monkeypatch.setattr(HfApi, "create_repo", lambda *args, **kwargs: url)
    monkeypatch.setattr(HfApi, "create_commit", commit)
    monkeypatch.setattr(ModelCard, "load", card)
    return seen


@pytest.mark.parametrize("kind", ["loaded", "copied", "graph"])
def test_push_to_hub_uploads_codes_and_formats(packed, folder, hub, kind):
    if kind == "graph":
        model = packed.to_module()
        note_formats(model)
    else:
        model = LlamaForCausalLM.from_pretrained(folder)
        model = copy.deepcopy(model) if kind == "copied" else model
    assert model.push_to_hub("me/tiny", tags=["new"]) == "https://hub/me/tiny"
    assert hub.files["config.json"] == (folder / "config.json").read_bytes()
    tensors, own = load(hub.files["model.safetensors"]), load_file(folder / "model.safetensors")
    assert tensors.keys() == own.keys() and all(torch.equal(tensors[x], own[x]) for x in own)
    card = ModelCard(hub.files["README.md"].decode())
    assert card.data.tags == ["chop", "quantized", "new"]
    assert card.data.library_name == "transformers" and hub.message == "Upload LlamaForCausalLM"


def test_push_to_hub_leaves_the_card_of_the_repository(folder, hub):
    hub.card = (folder / "README.md").read_text()
    LlamaForCausalLM.from_pretrained(folder).push_to_hub("me/tiny")
    card = ModelCard(hub.files["README.md"].decode())
    assert card.text == ModelCard(hub.card).text and card.data.tags == ["chop", "quantized"]


def test_an_offline_hub_is_named_as_by_transformers(folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = LlamaForCausalLM.from_pretrained(folder)
    with pytest.raises(Exception, match="(?i)offline"):
        model.push_to_hub("me/tiny")


def test_float_models_have_no_tags(folder, hub):
    model = LlamaForCausalLM.from_pretrained(folder).dequantize()
    model.push_to_hub("me/tiny")
    assert b"quantization_config" not in hub.files["config.json"]
    assert not ModelCard(hub.files["README.md"].decode()).data.tags
