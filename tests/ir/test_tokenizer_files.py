"""Files of a tokenizer that would take memory or time without bound are refused before."""

import json

import pytest

from chop.data.tokenizer import encode, find_processor, get_tokenizer
from chop.errors import CheckpointError
from chop.ir.huggingface import tokenizer_file

CHARACTERS = {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAA"}
GROWING = {"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaa"}
EMPTY = {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 70_000}
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
PIECE = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "pair": [PIECE, PIECE], "special_tokens": {}}
ADDED = {str(n): {"content": f"t{n}"} for n in range(200, 70_200)}
HOSTILE = {
    "characters": ("tokenizer.json", {"normalizer": CHARACTERS}, "cut short"),
    "characters inside": (
        "tokenizer.json",
        {"normalizer": {"type": "Sequence", "normalizers": [SPACE, CHARACTERS]}},
        "cut short",
    ),
    "no base64": (
        "tokenizer.json",
        {"normalizer": {**CHARACTERS, "precompiled_charsmap": [1]}},
        "cut short",
    ),
    "growing": (
        "tokenizer.json",
        {"normalizer": {"type": "Sequence", "normalizers": [GROWING] * 28}},
        "times as long",
    ),
    "growing by nothing": ("tokenizer.json", {"normalizer": EMPTY}, "times as long"),
    "growing decoder": (
        "tokenizer.json",
        {"decoder": {"type": "Sequence", "decoders": [GROWING] * 28}},
        "times as long",
    ),
    "template": (
        "tokenizer.json",
        {"post_processor": {**TEMPLATE, "single": [PIECE] * 2000}},
        "2,000 parts",
    ),
    "special": (
        "tokenizer.json",
        {
            "post_processor": {
                **TEMPLATE,
                "single": [PIECE],
                "special_tokens": {"x": {"id": "x", "ids": [0] * 2000, "tokens": ["x"] * 2000}},
            }
        },
        "2,000 parts",
    ),
    "added": (
        "tokenizer.json",
        {"added_tokens": [{"id": 0, "content": f"t{n}", **TOKEN} for n in range(70_000)]},
        "70,000 added tokens",
    ),
    "added decoder": (
        "tokenizer_config.json",
        {"added_tokens_decoder": ADDED},
        "70,000 added tokens",
    ),
    "added file": ("added_tokens.json", dict.fromkeys(ADDED, 1), "70,000 added tokens"),
    "no object": ("added_tokens.json", [1], "expected an object"),
}


@pytest.fixture
def folder(tmp_path):
    get_tokenizer("reviews").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_memory_or_time_without_bound_is_refused(name, folder):
    file, change, words = HOSTILE[name]
    path = folder / file
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **change} if isinstance(change, dict) else change))
    with pytest.raises(CheckpointError, match=words) as caught:
        get_tokenizer(str(folder))
    assert str(folder) in str(caught.value)
    assert find_processor(str(folder)) is None


@pytest.mark.parametrize("growth", [tokenizer_file.MOST_GROWTH, tokenizer_file.MOST_GROWTH + 1])
def test_replacements_up_to_the_bound_are_read(growth, folder):
    path = folder / "tokenizer.json"
    replacement = {**SPACE, "content": "\u2581" * growth}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": replacement}))
    if growth > tokenizer_file.MOST_GROWTH:
        with pytest.raises(CheckpointError, match="times as long"):
            get_tokenizer(str(folder))
    else:
        assert encode(get_tokenizer(str(folder)), "a good film")["input_ids"]
