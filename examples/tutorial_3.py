"""Tutorial 3: quantize a text classifier after training (PTQ), then train it back (QAT).

python examples/tutorial_3.py                                   (built-in reviews, a few minutes)
python examples/tutorial_3.py --checkpoint DIR --dataset DIR    (your own, or hub names)
"""

import argparse
import copy
from pathlib import Path

import chop.passes as passes
from chop import MaseGraph
from chop.base.files import write_json
from chop.models import load_model
from chop.tools import get_tokenized_dataset, get_trainer
from chop.train import calibration_batches, load_trained


def config_for(width, frac_width, kind="linear"):
    """MASE's mapping: one width for data, weight and bias. 'auto' derives each fraction."""
    operands = ("data_in", "weight", "bias")
    config = {"name": "integer"}
    config |= {f"{operand}_width": width for operand in operands}
    config |= {f"{operand}_frac_width": frac_width for operand in operands}
    return {"by": "type", "default": {"config": {"name": None}}, kind: {"config": config}}


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", default="bert-tiny", help="built-in, local folder or hub name"
    )
    parser.add_argument("--dataset", default="reviews", help="built-in, local folder or hub name")
    parser.add_argument(
        "--formats", default="8.4,4.2,8.auto,4.auto", help="width.fraction, comma separated"
    )
    parser.add_argument("--qat", default="8.4,4.2,4.auto", help="those that are trained back")
    parser.add_argument("--epochs", type=float, default=1, help="of each QAT")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a review")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-3/rows.json"))
    args = parser.parse_args()

    built_in = args.checkpoint == "bert-tiny"
    model = load_trained("bert-tiny") if built_in else load_model(args.checkpoint, num_labels=2)
    dataset, tokenizer = get_tokenized_dataset(
        dataset=args.dataset,
        checkpoint="reviews" if built_in else args.checkpoint,
        return_tokenizer=True,
        limit=args.limit,
        max_length=args.max_length,
    )

    mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)

    def trainer_for(graph):
        return get_trainer(
            model=graph.model,
            tokenized_dataset=dataset,
            tokenizer=tokenizer,
            evaluate_metric="accuracy",
            num_train_epochs=args.epochs,
            learning_rate=args.learning_rate,
            train_batch_size=16,
            # Reviews of like lengths together need less padding.
            train_sampling_strategy="group_by_length",
            seed=0,
        )

    def evaluate(graph):
        return trainer_for(graph).evaluate()["eval_accuracy"]

    results = {"float": evaluate(mg)}
    print(f"float: {results['float']:.2%}")
    for text in args.formats.split(","):
        width, frac_width = text.split(".")
        derived = frac_width == "auto"
        config = config_for(int(width), "auto" if derived else int(frac_width))
        quantized, _ = passes.quantize_transform_pass(mg, pass_args=config)
        if derived:
            batches = calibration_batches(mg.model, dataset)
            quantized, _ = passes.calibrate_transform_pass(quantized, {"batches": batches})
        passes.summarize_quantization_analysis_pass(quantized, {"silent": not built_in})
        results[f"PTQ {text}"] = evaluate(quantized)
        print(f"PTQ {text}: {results[f'PTQ {text}']:.2%}")
        if text in args.qat.split(","):
            trained = copy.deepcopy(quantized)
            trainer_for(trained).train()
            results[f"QAT {text}"] = evaluate(trained)
            print(f"QAT {text}: {results[f'QAT {text}']:.2%}")
    write_json(args.out, results)
    return results


if __name__ == "__main__":
    main()
