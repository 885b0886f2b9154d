"""Tokenizers of characters in GGUF: the same ids in transformers, and in llama.cpp."""

import importlib.util
from collections import Counter

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.gguf.reader import read_tokenizer
from chop.export.gguf.sentencepiece import SPACE, compute_scores
from chop.export.gguf.target import TARGET
from chop.export.gguf.tokenizer import get_vocabulary
from tests.export.gguf.test_target import GEMMA, OF_KIND, SIZES, weight_in

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

TOKENS = 384
SPECIAL = ["<unk>", "<s>", "</s>"]
TEXTS = [
    "the cat sat on the mat",
    " and  12 dogs!\n",
    "naïve 日本",
    "a<think>b the",
    "thethe  mat ",
]


def parts():
    """Tokens by id, and merges: all pairs whose union is a token, those of one after another."""
    corpus = "the cat sat on the mat and the dog sat too , 12 dogs" + SPACE
    characters = sorted({*corpus, *"bfgijklpqruvwxyz0345!"})
    counts = Counter()
    for word in corpus.split():
        word = SPACE + word
        for size in range(2, len(word) + 1):
            counts.update(word[i : i + size] for i in range(len(word) - size + 1))
    pieces = [x for x, _ in sorted(counts.items(), key=lambda x: (len(x[0]), -x[1], x[0]))][:70]
    tokens = [*SPECIAL, *(f"<0x{x:02X}>" for x in range(256)), *pieces, *characters]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges = []
    for piece in pieces:
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        found = [pair for pair in splits if {*pair} <= {*vocab}]
        merges += sorted(found, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return vocab, merges


def load_tokenizer(kind, **changes):
    vocab, merges = parts()
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    if kind == "llama":
        made = transformers.LlamaTokenizer(vocab=vocab, merges=merges, **changes)
    elif kind == "gemma":
        made = transformers.GemmaTokenizer(vocab=vocab, merges=merges, **names, pad_token="</s>")
    else:
        backend = Tokenizer(
            models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
        steps = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        backend.normalizer = normalizers.Sequence(steps)
        backend.decoder = decoders.ByteFallback()
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    made.add_tokens([AddedToken("<think>", normalized=False)])
    made.chat_template = "{{ messages[0]['content'] }}"
    return made


def small(kind):
    """One layer is enough for a tokenizer."""
    sizes = {**SIZES, "vocab_size": TOKENS, "num_key_value_heads": 2}
    torch.manual_seed(0)
    if kind == "gemma":
        config = transformers.Gemma2Config(**sizes | OF_KIND["gemma2"] | GEMMA)
    elif kind == "phi3":
        config = transformers.Phi3Config(**sizes, pad_token_id=0)
    else:
        config = transformers.LlamaConfig(**sizes)
    mg = MaseGraph(transformers.AutoModelForCausalLM.from_config(config).eval())
    rule = {"by": "name", "model.layers.0.mlp.down_proj": weight_in("mxint:width=8")}
    return passes.quantize_transform_pass(mg, rule)[0]


KINDS = ["llama", "gemma", "phi3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_transformers_gives_the_same_ids(kind, tmp_path):
    tokenizer = load_tokenizer(kind)
    info = TARGET.write(small(kind), tmp_path / "model.gguf", tokenizer)
    metaspace = "; llama.cpp also puts a space before texts that begin with one, and after special"
    assert info["tokenizer"].startswith("SentencePiece")
    assert (metaspace in info["tokenizer"]) == (kind == "llama")
    read = read_tokenizer(tmp_path)
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert read(text, add_special_tokens=False).input_ids == ids, text
        assert text != TEXTS[0] or len(ids) < 12  # of 23 characters
    assert read.chat_template == tokenizer.chat_template
    for name in ("bos_token_id", "eos_token_id", "unk_token_id"):
        assert getattr(read, name) == getattr(tokenizer, name) is not None


def test_what_is_written_of_tokens():
    tokenizer = load_tokenizer("llama")
    tokenizer.add_tokens([f"{SPACE}{SPACE}<x>"])
    found = get_vocabulary(tokenizer, TOKENS)
    vocab, merges = parts()
    assert found.model == "llama" and found.merges == []
    assert found.types[:4] == [2, 3, 3, 6] and found.types[-1] == 5
    assert Counter(found.types)[6] == 256 and Counter(found.types)[4] == 2
    assert found.tokens[len(vocab) + 1] == "  <x>"  # engines look for it in the text itself
    first, last = "".join(merges[0]), "".join(merges[-1])
    unions = {left + right for left, right in merges}
    assert found.scores[vocab[first]] == -1.0 > found.scores[vocab[last]] == -len(unions)
    assert found.ids["add_space_prefix"] and found.ids["bos_token_id"] == 1
    assert not get_vocabulary(load_tokenizer("gemma"), TOKENS).ids["add_space_prefix"]
    assert get_vocabulary(load_tokenizer("phi3"), TOKENS).ids["add_space_prefix"]


def test_merges_that_scores_do_not_stand_for_are_told():
    vocab = {token: index for index, token in enumerate(["a", "b", "ab", "ba", "aba"])}
    pairs = [("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")]
    assert compute_scores(vocab, pairs) == ({"ab": -1.0, "ba": -2.0, "aba": -3.0}, True)
    assert not compute_scores(vocab, pairs[:3])[1]  # aba may not be made of ab and a
    assert not compute_scores(vocab, [pairs[0], pairs[2], pairs[1], pairs[3]])[1]
    assert compute_scores({"a": 0}, []) == ({}, True)


def test_others_are_refused():
    for normalizer in (normalizers.NFKC(), normalizers.Replace("a", SPACE)):
        tokenizer = load_tokenizer("phi3")
        tokenizer.backend_tokenizer.normalizer = normalizer
        with pytest.raises(ConfigError, match="got another kind of character BPE"):
            get_vocabulary(tokenizer, TOKENS)
    tokenizer = load_tokenizer("llama")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, split=True)
    with pytest.raises(ConfigError, match="got another kind of character BPE"):
        get_vocabulary(tokenizer, TOKENS)


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("cyllama") is None,
    reason="llama.cpp is called by cyllama: pip install cyllama",
)
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_gives_the_same_ids(kind, tmp_path):
    from cyllama.llama import llama_cpp

    tokenizer = load_tokenizer(kind)
    tokenizer.add_tokens(["<|endoftext|>"], special_tokens=True)  # each model named Phi 3 has it
    TARGET.write(small(kind), tmp_path / "model.gguf", tokenizer)
    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    settings = llama_cpp.LlamaModelParams()
    model = llama_cpp.LlamaModel(str(tmp_path / "model.gguf"), settings, verbose=False)
    others = TEXTS[1::2] if kind == "llama" else []  # see `SPACED`
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        is_one = model.get_vocab().tokenize(text, False, True) == ids
        assert is_one == (text not in others), text
