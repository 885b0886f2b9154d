"""Tutorial 4: prune a text classifier, train it again, and make the zeros permanent.

python examples/tutorial_4.py                                   (built-in reviews, two minutes)
python examples/tutorial_4.py --checkpoint DIR --dataset DIR    (your own, or hub names)
"""

import argparse
from pathlib import Path

import chop.passes as passes
from chop import MaseGraph
from chop.base.files import write_json
from chop.models import load_model
from chop.tools import get_tokenized_dataset, get_trainer
from chop.train import calibration_batches, load_trained


def main():
    """Runs the tutorial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", default="bert-tiny", help="built-in, local folder or hub name"
    )
    parser.add_argument("--dataset", default="reviews", help="built-in, local folder or hub name")
    parser.add_argument("--sparsity", type=float, default=0.5, help="share of weights to remove")
    parser.add_argument("--methods", default="random,l1-norm", help="comma separated")
    parser.add_argument("--scope", default="local", choices=("local", "global"))
    parser.add_argument("--activation-sparsity", type=float, default=0.0, help="of layers' inputs")
    parser.add_argument("--epochs", type=float, default=5, help="of fine-tuning")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a review")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-4"))
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
            # Of a model this small; the default, 5e-5, suits those of the size of BERT-base.
            learning_rate=3e-4,
            train_batch_size=16,
            # Reviews of like lengths together need less padding.
            train_sampling_strategy="group_by_length",
            seed=0,
        )

    def evaluate(graph):
        return trainer_for(graph).evaluate()["eval_accuracy"]

    results = {"float": evaluate(mg)}
    print(f"float: {results['float']:.2%}")
    for method in args.methods.split(","):
        settings = {"method": method, "scope": args.scope, "granularity": "elementwise"}
        config = {"weight": {**settings, "sparsity": args.sparsity}}
        if args.activation_sparsity:
            config["activation"] = {**settings, "sparsity": args.activation_sparsity}
            # One threshold for all inputs, which scope "global" asks for, is found on these rows.
            config["batches"] = calibration_batches(mg.model, dataset, with_labels=True)
        # The graph that was passed in stays whole, so the next method starts from it again.
        pruned, info = passes.prune_transform_pass(mg, pass_args=config)
        results[f"{method}, pruned"] = evaluate(pruned)
        print(f"{method}: {info['sparsity']:.2%} of {info['weights']:,} weights pruned")
        print(f"{method}, pruned: {results[f'{method}, pruned']:.2%}")
        trainer_for(pruned).train()
        results[f"{method}, fine-tuned"] = evaluate(pruned)
        print(f"{method}, fine-tuned: {results[f'{method}, fine-tuned']:.2%}")

        final, _ = passes.prune_detach_hook_transform_pass(pruned)
        final.export(args.out / method)
        reloaded = MaseGraph.from_checkpoint(args.out / method)
        results[f"{method}, reloaded"] = evaluate(reloaded)
        print(f"{method}, reloaded: {results[f'{method}, reloaded']:.2%}, zeros are stored")
    write_json(args.out / "rows.json", results)


if __name__ == "__main__":
    main()
