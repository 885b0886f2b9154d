"""The course's tutorials 1 to 5 as users write them, on a small BERT and the built-in reviews."""

import copy
import pickle
from pathlib import Path

import optuna
import pytest
import torch
import torch.nn as nn
from optuna.samplers import RandomSampler, TPESampler
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig

import chop.passes as passes
from chop import MaseGraph
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.nn.modules import Identity
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
    report_graph_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.transforms import (
    prune_transform_pass,
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.utils import deepcopy_mase_graph, get_mase_op
from chop.passes.module import report_trainable_parameters_analysis_pass
from chop.pipelines import CompressionPipeline
from chop.tools import get_logger, get_tokenized_dataset, get_trainer
from chop.tools.get_input import InputGenerator
from chop.tools.utils import deepsetattr

logger = get_logger("mase_logger")
logger.setLevel("WARNING")

ROWS = 48


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with the configuration of a BERT that trains in a second."""
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        vocab_size=512,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    config.save_pretrained(folder)
    return str(folder)


def fresh_model(checkpoint):
    return AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(checkpoint))


@pytest.fixture(scope="module")
def tokenized():
    return get_tokenized_dataset(
        dataset="reviews", checkpoint="bert-tiny", return_tokenizer=True, limit=ROWS
    )


@pytest.fixture
def model(checkpoint):
    return fresh_model(checkpoint)


@pytest.fixture(scope="module")
def _mg(checkpoint):
    mg = MaseGraph(
        fresh_model(checkpoint), hf_input_names=["input_ids", "attention_mask", "labels"]
    )
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


@pytest.fixture
def mg(_mg):
    return _mg.copy()


def inputs(labels=False):
    torch.manual_seed(2)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    made = {"input_ids": torch.randint(0, 512, (2, 9)), "attention_mask": mask}
    return {**made, "labels": torch.tensor([0, 1])} if labels else made


def accuracy_of(mg, tokenized, epochs=0):
    dataset, tokenizer = tokenized
    trainer = get_trainer(
        model=mg.model,
        tokenized_dataset=dataset,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        num_train_epochs=epochs or 1,
    )
    if epochs:
        trainer.train()
    return trainer.evaluate()["eval_accuracy"]


# --- Tutorial 1: the Mase IR -------------------------------------------------------------------


def count_dropout_analysis_pass(mg, pass_args={}):  # noqa: B006
    dropout_modules = 0
    for node in mg.fx_graph.nodes:
        if node.op == "call_module" and "dropout" in node.target:
            logger.info(f"Found dropout module: {node.target}")
            dropout_modules += 1
        else:
            logger.debug(f"Skipping node: {node.target}")
    return mg, {"dropout_count": dropout_modules}


def remove_dropout_transform_pass(mg, pass_args={}):  # noqa: B006
    for node in mg.fx_graph.nodes:
        if node.op == "call_module" and "dropout" in node.target:
            parent_node = node.args[0]
            node.replace_all_uses_with(parent_node)
            mg.fx_graph.erase_node(node)
    return mg, {}


def test_tutorial_1(model, tmp_path):
    mg = MaseGraph(model)
    mg.draw(tmp_path / "bert-base-uncased.svg")
    assert "<svg" in (tmp_path / "bert-base-uncased.svg").read_text()
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(
        mg, pass_args={"dummy_in": inputs(), "add_value": False}
    )
    mg, pass_out = count_dropout_analysis_pass(mg)
    assert pass_out["dropout_count"] == 6
    mg, _ = remove_dropout_transform_pass(mg)
    mg, pass_out = count_dropout_analysis_pass(mg)
    assert pass_out["dropout_count"] == 0
    mg.export(f"{tmp_path}/tutorial_1")
    new_mg = MaseGraph.from_checkpoint(f"{tmp_path}/tutorial_1")
    assert torch.equal(new_mg.model(**inputs())["logits"], mg.model(**inputs())["logits"])
    mg.model.train()  # nothing random is left in it
    assert torch.equal(new_mg.model.train()(**inputs())["logits"], mg.model(**inputs())["logits"])


# --- Tutorial 2: fine-tuning and LoRA ----------------------------------------------------------


def test_tutorial_2(model, tokenized, tmp_path):
    drawn = {}
    for names in (["input_ids"], ["input_ids", "attention_mask", "labels"]):
        mg = MaseGraph(model, hf_input_names=names)
        mg.draw(tmp_path / "topology.svg")
        drawn[len(names)] = (tmp_path / "topology.svg").read_text()
    assert "cross_entropy" in drawn[3] and "cross_entropy" not in drawn[1]

    mg, _ = init_metadata_analysis_pass(mg)
    mg, _ = add_common_metadata_analysis_pass(mg)
    _, everything = report_trainable_parameters_analysis_pass(mg.model)
    for param in mg.model.bert.embeddings.parameters():
        param.requires_grad = False
    mg, _ = passes.insert_lora_adapter_transform_pass(
        mg, pass_args={"rank": 6, "alpha": 1.0, "dropout": 0.5}
    )
    _, adapters = passes.module.report_trainable_parameters_analysis_pass(mg.model)
    assert adapters != everything
    trainable = sum(p.numel() for p in mg.model.parameters() if p.requires_grad)
    assert trainable * 3 < sum(p.numel() for p in mg.model.parameters())

    before = copy.deepcopy(mg.model.state_dict())
    assert 0 <= accuracy_of(mg, tokenized, epochs=1) <= 1
    moved = {n for n, x in mg.model.state_dict().items() if not torch.equal(x, before[n])}
    assert moved and not any("embeddings" in name for name in moved)
    mg.model.eval()
    expected = mg.model(**inputs(labels=True))
    mg, _ = passes.fuse_lora_weights_transform_pass(mg)
    fused = mg.model(**inputs(labels=True))
    torch.testing.assert_close(fused["logits"], expected["logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fused["loss"], expected["loss"], atol=1e-5, rtol=1e-5)
    assert not any("lora" in name for name in mg.model.state_dict())


# --- Tutorial 3: quantization ------------------------------------------------------------------


def quantization_config(width, frac_width):
    return {
        "by": "type",
        "default": {"config": {"name": None}},
        "linear": {
            "config": {
                "name": "integer",
                "data_in_width": width,
                "data_in_frac_width": frac_width,
                "weight_width": width,
                "weight_frac_width": frac_width,
                "bias_width": width,
                "bias_frac_width": frac_width,
            }
        },
    }


def test_tutorial_3(mg, tokenized, tmp_path):
    mg.export(tmp_path / "tutorial_2_lora")
    mg = MaseGraph.from_checkpoint(tmp_path / "tutorial_2_lora")
    mg.model.eval()
    outputs = {}
    for width in (16, 8, 4):
        config = quantization_config(width, width // 2)
        kept = copy.deepcopy(config)
        quantized, _ = passes.quantize_transform_pass(mg, pass_args=config)
        again, _ = quantize_transform_pass(mg, config)
        assert config == kept
        outputs[width] = quantized.model(**inputs(labels=True))["logits"]
        assert torch.equal(again.model(**inputs(labels=True))["logits"], outputs[width])
    true = mg.model(**inputs(labels=True))["logits"]
    errors = {width: (x - true).norm().item() for width, x in outputs.items()}
    assert errors[16] < 0.1 * min(errors[8], errors[4])  # steps of 1/256 against 1/16 and 1/4

    with pytest.warns(match="layers fit badly.*integer 4.2"):
        _, table = summarize_quantization_analysis_pass(quantized, {"save_dir": str(tmp_path)})
    assert table and any(tmp_path.iterdir())
    before = [p.detach().clone() for p in quantized.model.parameters()]
    assert 0 <= accuracy_of(quantized, tokenized, epochs=1) <= 1  # QAT
    after = list(quantized.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    quantized.export(Path(tmp_path) / "tutorial_3_qat")
    back = MaseGraph.from_checkpoint(Path(tmp_path) / "tutorial_3_qat")
    quantized.model.eval(), back.model.eval()
    expected = quantized.model(**inputs(labels=True))["logits"]
    assert torch.equal(back.model(**inputs(labels=True))["logits"], expected)


def test_one_precision_per_layer_by_name(mg):
    config = {"by": "name", "default": {"config": {"name": None}}}
    for node in mg.fx_graph.nodes:
        if get_mase_op(node) == "linear" and "query" in node.name:
            config[node.name] = quantization_config(8, 4)["linear"]
    small, info = passes.quantize_transform_pass(mg, config)
    assert info["quantized"] == 2
    by_pattern = {"by": "regex_name", ".*query": quantization_config(8, 4)["linear"]}
    other, info = passes.quantize_transform_pass(graph=mg, pass_args=by_pattern)
    assert info["quantized"] == 2
    expected = small.model(**inputs(labels=True))["logits"]
    assert torch.equal(other.model(**inputs(labels=True))["logits"], expected)


# --- Tutorial 4: pruning -----------------------------------------------------------------------


def pruning_config(sparsity, method="l1-norm", scope="local"):
    how = {"sparsity": sparsity, "method": method, "scope": scope}
    return {"weight": dict(how), "activation": dict(how)}


@pytest.mark.parametrize(("method", "scope"), [("l1-norm", "local"), ("random", "global")])
@pytest.mark.sampled(1)
def test_tutorial_4(mg, tokenized, tmp_path, method, scope):
    config = pruning_config(0.5, method)
    config["weight"]["scope"] = scope
    kept = copy.deepcopy(config)
    mg, _ = passes.prune_transform_pass(mg, pass_args=config)
    assert config == kept
    assert 0 <= accuracy_of(mg, tokenized, epochs=1) <= 1
    layers = [m for m in mg.modules.values() if getattr(m, "is_pruned", False)]
    assert layers
    hidden = sum((layer.effective("weight") == 0).sum().item() for layer in layers)
    assert hidden / sum(layer.weight.numel() for layer in layers) == pytest.approx(0.5, abs=1e-3)
    mg.export(tmp_path / "tutorial_4")
    back = MaseGraph.from_checkpoint(tmp_path / "tutorial_4")
    mg.model.eval(), back.model.eval()
    torch.manual_seed(0)
    expected = mg.model(**inputs(labels=True))["logits"]
    torch.manual_seed(0)
    assert torch.equal(back.model(**inputs(labels=True))["logits"], expected)
    plain, _ = passes.prune_detach_hook_transform_pass(mg, {})
    linear = plain.modules["bert.encoder.layer.0.output.dense"]
    assert type(linear) is nn.Linear and (linear.weight == 0).float().mean() > 0.1


# --- Tutorial 5: neural architecture search ----------------------------------------------------

search_space = {
    "num_layers": [1, 2],
    "num_heads": [2, 4],
    "hidden_size": [16, 32],
    "intermediate_size": [32, 64],
    "linear_layer_choices": [nn.Linear, Identity],
}


def construct_model(trial, checkpoint):
    config = AutoConfig.from_pretrained(checkpoint)
    for param in ["num_layers", "num_heads", "hidden_size", "intermediate_size"]:
        chosen_idx = trial.suggest_int(param, 0, len(search_space[param]) - 1)
        setattr(config, param, search_space[param][chosen_idx])
    trial_model = AutoModelForSequenceClassification.from_config(config)
    for name, layer in trial_model.named_modules():
        if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features:
            new_layer_cls = trial.suggest_categorical(
                f"{name}_type", search_space["linear_layer_choices"]
            )
            if new_layer_cls == nn.Linear:
                continue
            new_layer = Identity()
            deepsetattr(trial_model, name, new_layer)
    return trial_model


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution:UserWarning")
@pytest.mark.parametrize(
    "sampler", [pytest.param(RandomSampler, marks=pytest.mark.long), TPESampler]
)
def test_tutorial_5(checkpoint, tokenized, tmp_path, sampler):
    def objective(trial):
        model = construct_model(trial, checkpoint)
        dataset, tokenizer = tokenized
        trainer = get_trainer(
            model=model,
            tokenized_dataset=dataset,
            tokenizer=tokenizer,
            evaluate_metric="accuracy",
            num_train_epochs=1,
            train_batch_size=16,
        )
        trainer.train()
        mg = MaseGraph(model)
        mg, _ = CompressionPipeline()(
            mg,
            pass_args={
                "quantize_transform_pass": quantization_config(8, 4),
                "prune_transform_pass": pruning_config(0.5),
            },
        )
        eval_results = accuracy_of(mg, tokenized)
        trial.set_user_attr("model", model)
        return eval_results

    study = optuna.create_study(
        direction="maximize", study_name="bert-nas", sampler=sampler(seed=0)
    )
    study.optimize(objective, n_trials=1, timeout=60 * 60 * 24)
    assert len(study.trials) == 1 and 0 <= study.best_value <= 1
    kinds = {v for t in study.trials for k, v in t.params.items() if k.endswith("_type")}
    assert kinds == {nn.Linear, Identity}
    best = study.best_trial.user_attrs["model"].cpu().eval()
    again = pickle.loads(pickle.dumps(best))
    assert torch.equal(again(**inputs()).logits, best(**inputs()).logits)
    mg = MaseGraph(best)
    mg.export(tmp_path / "tutorial_5")
    back = MaseGraph.from_checkpoint(tmp_path / "tutorial_5")
    torch.testing.assert_close(back.model(**inputs())["logits"], best(**inputs()).logits)


# --- Lab 1 of the course before, with a data module --------------------------------------------


def test_jets_by_data_module(tmp_path):
    data_module = MaseDataModule(name="toy", batch_size=8, model_name="jsc-tiny", num_workers=0)
    data_module.prepare_data()
    data_module.setup()
    model_info = get_model_info("jsc-tiny")
    model = get_model(
        "jsc-tiny", task="cls", dataset_info=data_module.dataset_info, pretrained=False
    )
    input_generator = InputGenerator(
        data_module=data_module, model_info=model_info, task="cls", which_dataloader="train"
    )
    dummy_in = next(iter(input_generator))
    _ = model(**dummy_in)

    mg = MaseGraph(model=model)
    mg, _ = init_metadata_analysis_pass(mg, None)
    mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in})
    mg, _ = add_software_metadata_analysis_pass(mg, None)
    _ = report_graph_analysis_pass(mg, {"file_name": str(tmp_path / "graph.txt")})
    pass_args = {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["relu"],
        "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
        "activation_statistics": {
            "range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97}
        },
        "input_generator": input_generator,
        "num_samples": 32,
    }
    mg, _ = profile_statistics_analysis_pass(mg, pass_args)
    linear = next(node for node in mg.fx_graph.nodes if get_mase_op(node) == "linear")
    stat = linear.meta["mase"]["software"]["args"]["weight"]["stat"]
    assert stat["variance_precise"]["variance"] > 0

    ori_mg = deepcopy_mase_graph(mg)
    mg, _ = quantize_transform_pass(mg, quantization_config(8, 4))
    summarize_quantization_analysis_pass(mg, {"original_graph": ori_mg, "save_dir": str(tmp_path)})
    mg, _ = report_node_type_analysis_pass(mg)
    pruned, _ = prune_transform_pass(mg, {"weight": pruning_config(0.5)["weight"]})
    right, total = 0, 0
    for xs, ys in data_module.test_dataloader():
        preds = pruned.model(xs)
        right += (preds.argmax(-1) == ys).sum().item()
        total += len(ys)
    assert total == 400 and 0 <= right <= total
    assert (tmp_path / "graph.txt").read_text()
