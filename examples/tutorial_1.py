"""Tutorial 1: a model as a graph. Draw it, compare two, write two passes, save it, read it back.

python examples/tutorial_1.py                      (built-in BERT-tiny, seconds)
python examples/tutorial_1.py --checkpoint DIR     (a local BERT classifier)
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, BertConfig

import chop.passes as passes
from chop import MaseGraph
from chop.tools import get_logger

logger = get_logger("tutorial_1")


def count_dropout_analysis_pass(mg, pass_args={}):  # noqa: B006 (the way users write passes)
    """An analysis pass looks and returns what it found."""
    count = 0
    for node in mg.fx_graph.nodes:
        if node.op == "call_module" and "dropout" in node.target:
            logger.info(f"found dropout: {node.target}")
            count += 1
    return mg, {"dropout_count": count}


def remove_dropout_transform_pass(mg, pass_args={}):  # noqa: B006
    """A transform pass changes the graph."""
    for node in list(mg.fx_graph.nodes):
        if node.op == "call_module" and "dropout" in node.target:
            node.replace_all_uses_with(node.args[0])
            mg.fx_graph.erase_node(node)
    return mg, {}


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", help="local folder or hub name; default: a small random BERT"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-1"))
    args = parser.parse_args()

    if args.checkpoint:
        model = AutoModelForSequenceClassification.from_pretrained(args.checkpoint)
    else:
        config = BertConfig(
            hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
        )
        model = AutoModelForSequenceClassification.from_config(config)

    mg = MaseGraph(model.eval())
    mg.draw(args.out / "bert.svg")

    # What computes the mask's bias is gone without the mask, and the loss without labels.
    names = ["input_ids", "attention_mask", "labels"]
    full = MaseGraph(model, hf_input_names=names)
    for missing in names[1:]:
        fewer = MaseGraph(model, hf_input_names=[name for name in names if name != missing])
        full.draw(args.out / f"without_{missing}.svg", compare=fewer)
        signs = [line[0] for line in full.diff(fewer)]
        print(f"without {missing}: {signs.count('-')} nodes gone, {signs.count('+')} new")

    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)

    mg, before = count_dropout_analysis_pass(mg)
    mg, _ = remove_dropout_transform_pass(mg)
    mg, after = count_dropout_analysis_pass(mg)
    print(f"dropouts: {before['dropout_count']} before, {after['dropout_count']} after")
    assert after["dropout_count"] == 0

    mg.export(args.out / "tutorial_1")
    reloaded = MaseGraph.from_checkpoint(args.out / "tutorial_1")
    inputs = {
        "input_ids": torch.randint(0, 1000, (2, 20)),
        "attention_mask": torch.ones(2, 20, dtype=torch.long),
    }
    expected, actual = mg.model(**inputs), reloaded.model(**inputs)
    assert torch.equal(expected["logits"], actual["logits"])
    print(f"reloaded: identical outputs; see {args.out}/bert.svg")


if __name__ == "__main__":
    main()
