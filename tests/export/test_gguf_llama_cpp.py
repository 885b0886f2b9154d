"""GGUF in llama.cpp itself: it generates our tokens, or near-ties of ours."""

import importlib.util

import pytest
import torch

from chop.export.gguf import TARGET, read_model
from tests.export.test_gguf import CASES, ROPES, VOCABULARY, captured, of_kind, quantized
from tests.export.test_gguf_tokenizer import byte_level

pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

GEMMA3 = {
    "tie_word_embeddings": True,
    "num_hidden_layers": 6,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0},
    },
}
RUN = [
    ("llama", {"tie_word_embeddings": True, "head_dim": 32}),
    ("llama", {"rope_parameters": ROPES[0]}),
    ("llama", {"rope_parameters": ROPES[1]}),
    *((kind, changes) for kind, changes in CASES[1:-2] if kind != "gemma3"),
    ("gemma3", GEMMA3),  # llama.cpp asks for a layer that attends to all positions
    ("gpt2", {"n_inner": 96}),
]


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("cyllama") is None,
    reason="llama.cpp is called by cyllama: pip install cyllama",
)
@pytest.mark.parametrize("fmt", ["mxint:width=8", "mxint:width=4", "mxfp:width=4"])
@pytest.mark.parametrize(("kind", "changes"), RUN)
def test_llama_cpp_generates_our_tokens(kind, changes, fmt, tmp_path):
    """Or near-ties of ours: ggml rounds the inputs of products to 8 bits, logits are within 2%.

    Those of Gemma, whose norms and caps amplify differences, are within 5%; other rotary
    embeddings, windows or caps would change them by more.
    """
    check_in_llama_cpp(of_kind(kind, changes, fmt), tmp_path / "model.gguf", kind)


def check_in_llama_cpp(mg, path, kind):
    tokenizer = byte_level()
    tokenizer.add_tokens(["<|endoftext|>"], special_tokens=True)  # each model named Phi 3 has it
    TARGET.write(mg, path, tokenizer)
    prompt = [5, 6, 7, 80]
    tokens, found = LlamaCpp(path).generated(prompt, 20)
    with torch.no_grad():
        (logits,) = read_model(path)(torch.tensor([prompt + tokens[:-1]])).logits
    ours = logits[len(prompt) - 1 :]
    errors = (found - ours).norm(dim=-1)
    assert (errors < (0.05 if "gemma" in kind else 0.02) * ours.norm(dim=-1)).all()
    margins = ours.amax(-1) - ours.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (margins <= 2 * (found - ours).abs().amax(-1)).all()
    assert (margins > 0).sum() <= 2


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("cyllama") is None,
    reason="llama.cpp is called by cyllama: pip install cyllama",
)
@pytest.mark.parametrize(
    "fmt",
    [
        "group_affine:width=4:group_size=32",
        "group_affine:width=5:group_size=32",
        "group_integer:width=5",
        "nvfp4",
    ],
)
def test_llama_cpp_reads_other_types(fmt, tmp_path):
    embedding = None if fmt == "nvfp4" else fmt
    mg = quantized(captured("llama", intermediate_size=128), fmt, embedding=embedding)
    check_in_llama_cpp(mg, tmp_path / "model.gguf", "llama")


class LlamaCpp:
    """A model in llama.cpp that is given tokens one after the other."""

    def __init__(self, path):
        from cyllama.llama import llama_cpp

        class Model(llama_cpp.LlamaModel):
            n_vocab = VOCABULARY  # cyllama 0.2 looks for it there, and has it in the vocabulary

        llama_cpp.disable_logging()
        llama_cpp.llama_backend_init()
        settings = llama_cpp.LlamaContextParams()
        settings.n_ctx, settings.n_threads, settings.n_threads_batch = 64, 1, 1
        model = Model(str(path), llama_cpp.LlamaModelParams(), verbose=False)
        self.context = llama_cpp.LlamaContext(model, settings, verbose=False)
        self.batch, self.length = llama_cpp.llama_batch_get_one, 0

    def logits(self, ids):
        self.context.decode(self.batch(ids, self.length))
        self.length += len(ids)
        return torch.tensor(self.context.get_logits())

    def generated(self, ids, count):
        """The likeliest tokens, each after those before it, and logits (count, V) of each."""
        tokens, logits = [], []
        for _ in range(count):
            logits.append(self.logits(ids))
            ids = [int(logits[-1].argmax())]
            tokens += ids
        return tokens, torch.stack(logits)
