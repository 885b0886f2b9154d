"""The job that judges a model on rows and by tasks of lm-eval, beside its float model."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from chop import MaseGraph, passes, runs
from chop.actions.evaluate import rows as rows_module
from chop.actions.evaluate.card import add_results
from chop.actions.evaluate.job import evaluate, get_identity, identity_of_tokenizer
from chop.actions.evaluate.models import load_judged
from chop.actions.evaluate.results import Evaluation
from chop.actions.evaluate.rows import Measured, RowResult, get_result, measure_rows, share
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import TaskScore
from chop.data.stories import story
from chop.data.tokenizer import STORY_VOCABULARY, get_tokenizer
from chop.errors import CheckpointError, ConfigError, UnavailableError
from chop.ir.huggingface.card import card_rows, extend_table, is_own
from chop.models import load_model
from chop.runs import Journal
from chop.statistics.intervals import wilson
from chop.train.tasks import TASKS
from tests.export.decoders import decoder

RULE = {"config": {"weight": {"name": "mxint", "width": 4}}}


def packed(model, embedding=True):
    names = ("linear", "embedding") if embedding else ("linear",)
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model), {"by": "type", **dict.fromkeys(names, RULE)}
    )
    return passes.pack_transform_pass(mg, {"silent": True})[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A float decoder of the stories' tokens, and the same packed to 4 bits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("evaluate")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    config = LlamaConfig(vocab_size=STORY_VOCABULARY, **sizes, **heads, pad_token_id=0)
    model = LlamaForCausalLM(config).eval()
    tokenizer = get_tokenizer("stories")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)  # answers differ from one another
    model.save_pretrained(place / "float")
    tokenizer.save_pretrained(place / "float")
    packed(model).save_pretrained(place / "packed", tokenizer)
    draw = random.Random(0)
    texts = [json.dumps({"text": story(draw)}) for _ in range(40)]
    (place / "texts.jsonl").write_text("\n".join(texts))
    return place


def settings(folders, out, **given):
    data = str(folders / "texts.jsonl")
    how = {"reference": str(folders / "float"), "dataset": data, "limit": 5, "out": out, **given}
    return EvaluateConfig(str(folders / "packed"), **how)


@torch.no_grad()
def expected(folders, ids):
    """Texts one by one, without padding, in the words of the definitions."""
    models = [load_model(folders / name) for name in ("packed", "float")]
    nll, was_nll, kl, same, right, was_right = ([] for _ in range(6))
    for row in ids:
        own, other = (m(input_ids=row[None]).logits[0, :-1].double() for m in models)
        p, q, label = other.softmax(-1), own.softmax(-1), row[1:]
        nll += (-q[torch.arange(len(label)), label].log()).tolist()
        was_nll += (-p[torch.arange(len(label)), label].log()).tolist()
        kl += (p * (p.log() - q.log())).sum(-1).tolist()
        same += (own.argmax(-1) == other.argmax(-1)).tolist()
        right += (own.argmax(-1) == label).tolist()
        was_right += (other.argmax(-1) == label).tolist()
    return [torch.tensor(x).double() for x in (nll, was_nll, kl, same, right, was_right)]


@pytest.mark.long
def test_numbers_of_rows_are_those_of_texts_one_by_one(folders, tmp_path):
    found = evaluate(settings(folders, tmp_path, batch_size=3)).rows
    judged = load_judged(settings(folders, tmp_path))
    ids = judged.workload.test.spread(5).columns["input_ids"]
    assert len({len(row) for row in ids}) > 1  # some are padded
    nll, was_nll, kl, same, right, was_right = expected(folders, ids)
    assert (found.rows, found.answers, found.metric) == (5, len(nll), "perplexity")
    assert found.own.value == pytest.approx(nll.mean().exp().item(), rel=1e-4)
    assert found.reference.value == pytest.approx(was_nll.mean().exp().item(), rel=1e-4)
    assert found.kl.value == pytest.approx(kl.mean().item(), rel=1e-3)
    assert found.same.value == pytest.approx(same.mean().item(), abs=0.02)
    assert found.flips.value == pytest.approx((right != was_right).double().mean().item(), abs=0.02)
    assert found.lost + found.won == round(found.flips.value * found.answers)
    assert found.change.value * found.answers == pytest.approx(found.won - found.lost)
    for measured in (found.own, found.kl, found.same, found.flips):
        assert measured.interval[0] <= measured.value <= measured.interval[1]


@pytest.mark.long
def test_weights_stay_packed(folders, tmp_path):
    from chop.nn.packed import PackedLinear

    judged = load_judged(settings(folders, tmp_path))
    layers = [m for m in judged.model.modules() if isinstance(m, PackedLinear)]
    assert len(layers) == 8
    assert type(judged.model).__name__ == type(judged.reference).__name__ == "LlamaForCausalLM"
    assert all("weight" not in dict(layer.named_parameters()) for layer in layers)


def test_results_are_written_and_the_same_command_goes_on(folders, tmp_path, monkeypatch):
    config = settings(folders, tmp_path, batch_size=2)
    seen, answers = [], rows_module._answers

    def stopped(judged, rows):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(rows))
        return answers(judged, rows)

    monkeypatch.setattr(rows_module, "_answers", stopped)
    with pytest.raises(KeyboardInterrupt) as stop:
        evaluate(config)
    assert "4 finished points are saved" in stop.value.__notes__[-1]
    assert not (tmp_path / "result.json").exists()
    seen.clear()
    whole = evaluate(config)
    assert seen == [1]  # of five rows
    monkeypatch.setattr(rows_module, "_answers", None)
    assert evaluate(config) == whole
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["rows"]["kl"]["value"] == whole.rows.kl.value
    assert (written["reference"], written["dataset"]) == (
        str(folders / "float"),
        str(folders / "texts.jsonl"),
    )
    table = (tmp_path / "table.md").read_text()
    assert "| packed |" in table and "5 split-off rows" in table
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("evaluate", "finished")
    page = json.loads((tmp_path / "report.json").read_text())
    assert [tile["label"] for tile in page["tiles"]] == [
        "perplexity (95 % interval)",
        "KL divergence (nats)",
        "same answer",
        "flips",
    ]
    assert page["tiles"][1]["value"] == whole.rows.kl.value and "KL divergence" in page["verdict"]
    (chart,) = page["charts"]
    shares = [mark["y"] for mark in chart["series"][0]["marks"]]
    assert shares == sorted(shares) and shares[-1] <= 1
    names = {"table.md", "result.json", "kl.svg", "answers.jsonl"}
    names |= {"report.html", "report.json"}
    assert {artifact.path for artifact in manifest.artifacts} == names


@pytest.mark.long
def test_other_weights_and_formats_are_asked_anew(folders):
    model = load_model(folders / "float")
    first = get_identity(model)
    assert get_identity(load_model(folders / "float")) == first
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert get_identity(model) != first
    inputs = {"config": {"weight": RULE["config"]["weight"], "data_in": {"name": "mxint"}}}
    graph = MaseGraph(load_model(folders / "float"))
    both = [
        passes.quantize_transform_pass(graph, {"by": "type", "linear": rule})[0].model
        for rule in (RULE, inputs)
    ]
    assert get_identity(both[0]) != get_identity(both[1])  # equal weights, other inputs
    assert get_identity(packed(load_model(folders / "float")).model) == get_identity(
        packed(load_model(folders / "float")).model
    )


@pytest.mark.parametrize(
    "given",
    [
        {"rms_norm_eps": 1e-2},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"hidden_act": "gelu"},
    ],
    ids=["eps", "rotary", "activation"],
)
def test_settings_that_no_weight_shows_are_asked_anew(folders, tmp_path, given):
    model = load_model(folders / "float")
    config = json.loads((folders / "float" / "config.json").read_text())
    shutil.copytree(folders / "float", tmp_path / "other")
    same = get_identity(load_model(tmp_path / "other"))
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, **given}))
    assert same == get_identity(model) != get_identity(load_model(tmp_path / "other"))


def test_other_tokens_are_asked_anew():
    stories = get_tokenizer("stories")
    assert identity_of_tokenizer(stories) == identity_of_tokenizer(get_tokenizer("stories"))
    stories.add_tokens(["kite-shaped"])
    assert identity_of_tokenizer(stories) != identity_of_tokenizer(get_tokenizer("stories"))


def test_a_float_model_alone_has_its_metric(folders, tmp_path):
    found = evaluate(EvaluateConfig(str(folders / "float"), limit=3, out=tmp_path))
    assert (found.reference, found.dataset) == ("", "stories")
    assert (found.rows.reference, found.rows.kl) == (None, None)
    assert found.rows.own.value > 1
    assert "--reference FLOAT_MODEL" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "kl.svg").exists()


def test_own_texts_are_read_in_windows(folders, tmp_path):
    (tmp_path / "texts.txt").write_text("Anna has a red kite. Where is the kite now?\n" * 30)
    how = {"dataset": str(tmp_path / "texts.txt"), "max_length": 32, "stride": 32, "limit": None}
    found = evaluate(settings(folders, tmp_path / "out", **how))
    windows, answers = found.rows.rows, found.rows.answers
    assert windows > 1 and 31 * (windows - 1) < answers <= 31 * windows
    assert found.dataset.endswith("texts.txt")


class TestResultOf:
    """Numbers of rows that were run."""

    @staticmethod
    def kept(own, reference, labels):
        task = TASKS["classification"]
        return [
            rows_module._columns(
                task,
                own[i : i + 1],
                labels[i : i + 1],
                None if reference is None else reference[i : i + 1],
            )
            for i in range(len(labels))
        ]

    def test_classes_have_wilsons_intervals_and_flips(self):
        labels = torch.tensor([0, 1, 2, 0, 1])
        own = F.one_hot(torch.tensor([0, 1, 0, 0, 2]), 3).float()
        reference = F.one_hot(torch.tensor([0, 2, 2, 0, 0]), 3).float()
        found = get_result(self.kept(own, reference, labels), TASKS["classification"])
        assert (found.own.value, found.reference.value) == pytest.approx((0.6, 0.6))
        assert found.own.interval == wilson(3, 5)
        assert (found.lost, found.won, found.flips.value) == (1, 1, 0.4)
        assert found.flips.interval == wilson(2, 5)
        low, high = found.change.interval
        assert found.change.value == 0 and low < 0 < high
        assert found.same.value == 0.4  # wrong in another way is no flip
        apart = F.kl_div(
            own.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        assert found.kl.value == pytest.approx(apart.item())

    def test_the_same_model_has_none(self):
        logits, labels = torch.randn(6, 4), torch.arange(6) % 4
        found = get_result(self.kept(logits, logits, labels), TASKS["classification"])
        assert (found.kl.value, found.flips.value, found.same.value) == (0, 0, 1)
        assert found.flips.interval == wilson(0, 6)
        assert found.change.interval == (-wilson(0, 6)[1], wilson(0, 6)[1])

    def test_answers_that_are_not_finite_are_infinitely_far(self):
        logits, labels = torch.randn(3, 4), torch.arange(3)
        other = logits.clone()
        other[1] = torch.nan
        found = get_result(self.kept(other, logits, labels), TASKS["classification"])
        assert found.kl.value == float("inf")

    def test_numbers_do_not_flip(self):
        task = TASKS["regression"]
        labels, own = torch.randn(8, 2), torch.randn(8, 2)
        kept = [
            rows_module._columns(task, own[i : i + 1], labels[i : i + 1], labels[i : i + 1])
            for i in range(8)
        ]
        found = get_result(kept, task)
        assert (found.reference.value, found.kl, found.flips) == (1.0, None, None)

    def test_a_row_of_one_token_counts_nothing(self):
        task = TASKS["causal-lm"]
        logits, labels = torch.randn(1, 5, 7), torch.randint(7, (1, 5))
        empty = rows_module._columns(task, *task.compare(logits[:, :1], labels[:, :1]), None)
        assert empty == {"labels": [], "own": []}
        full = rows_module._columns(task, *task.compare(logits, labels), None)
        found = get_result([empty, full], task)
        assert (found.rows, found.answers, found.own.interval) == (2, 4, None)

    def test_rows_are_drawn_with_all_their_answers(self):
        # Ten rows of a hundred equal answers tell no more than ten answers.
        chosen = torch.arange(10).repeat_interleave(100) < 5
        low, high = share(chosen, [100] * 10).interval
        assert high - low > 0.4
        assert share(chosen[:500], [100] * 5).interval == wilson(5, 5)


@pytest.mark.parametrize("wrong", ["x", None, {}, 10**30, [1]])
def test_answers_that_no_evaluation_writes_are_one_sentence(wrong):
    kept = [{"labels": [1], "own": [1]}, {"labels": [0], "own": [wrong]}]
    with pytest.raises(CheckpointError, match=r"answers.jsonl .* remove it"):
        get_result(kept, TASKS["classification"])


@pytest.mark.long
def test_classifiers_are_judged_on_their_rows(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=1, vocab_size=len(get_tokenizer("reviews")), **sizes)
    model = BertForSequenceClassification(config).eval()
    tokenizer = get_tokenizer("reviews")
    for name, each in {"float": model, "packed": packed(model).to_module()}.items():
        each.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    config = EvaluateConfig(str(tmp_path / "packed"), (), str(tmp_path / "float"), limit=12)
    with pytest.raises(ConfigError, match="needs a data set: pass --dataset"):
        load_judged(config)
    texts = [{"text": f"a {word} film", "label": i % 2} for i, word in enumerate("abcdef" * 12)]
    (tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, texts)))
    films = str(tmp_path / "films.jsonl")
    found = evaluate(replace(config, dataset=films, out=tmp_path / "out")).rows
    assert (found.metric, found.rows, found.answers) == ("accuracy", 12, 12)
    assert found.kl.value >= 0 and 0 <= found.flips.value <= 1


def test_a_run_knows_its_float_model_and_data(tmp_path):
    from chop.actions.compress.job import compress
    from chop.actions.compress.settings import CompressConfig

    how = {"qat_epochs": 0, "keep_best": True, "bench_seconds": 0.0, "limit": 40, "device": "cpu"}
    compress(CompressConfig(model="mlp", formats=("mxint:width=4",), out=tmp_path / "run", **how))
    found = evaluate(EvaluateConfig(str(tmp_path / "run"), out=tmp_path / "out"))
    assert (found.reference, found.dataset) == ("mlp", "digits")
    (row,) = [x for x in runs.read_manifest(tmp_path / "run").rows if x["method"] == "PTQ"]
    assert found.rows.own.value == pytest.approx(row["accuracy"])
    assert found.rows.flips.value >= 0 and found.rows.answers == found.rows.rows
    with pytest.raises(ConfigError, match="built-in model 'mlp' is trained on 'digits', not on"):
        evaluate(EvaluateConfig(str(tmp_path / "run"), dataset="reviews", out=tmp_path / "out"))


@pytest.mark.long
def test_a_graph_without_a_run_needs_its_float_model(folders, tmp_path):
    packed(load_model(folders / "float")).export(tmp_path / "graph")
    with pytest.raises(ConfigError, match="without data: pass --reference"):
        load_judged(EvaluateConfig(str(tmp_path / "graph")))
    config = settings(folders, tmp_path / "out", limit=3)
    from_graph = evaluate(replace(config, model=str(tmp_path / "graph"))).rows
    from_folder = evaluate(replace(config, out=tmp_path / "other")).rows
    assert from_graph.own.value == pytest.approx(from_folder.own.value, rel=1e-5)
    assert from_graph.kl.value == pytest.approx(from_folder.kl.value, rel=1e-4)


def test_what_has_no_meaning_is_refused(folders, tmp_path):
    other = tmp_path / "other"
    decoder("Llama").save_pretrained(other)
    with pytest.raises(ConfigError, match="does not read the rows of .*: expected its float"):
        load_judged(settings(folders, tmp_path, reference=str(other)))
    with pytest.raises(ConfigError, match="is the model itself"):
        load_judged(settings(folders, tmp_path, reference=str(folders / "packed")))
    with pytest.raises(UnavailableError):
        load_judged(settings(folders, tmp_path, reference=str(tmp_path / "nothing")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_fewshot": 2}, "num_fewshot: applies to tasks only"),
        ({"include_path": Path("tasks")}, "include_path: applies to tasks only"),
        ({"tasks": ("a", "a")}, "tasks: 'a' is given twice"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        EvaluateConfig("gpt-tiny", **given)


def test_tasks_name_the_command_that_installs_lm_eval(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"chop evaluate --tasks needs lm_eval: pip install"):
        EvaluateConfig("gpt-tiny", tasks=("hellaswag",))


def test_a_run_that_saved_no_model_says_so(tmp_path):
    with runs.start("compress", {"model": "mlp"}, tmp_path):
        pass
    with pytest.raises(CheckpointError, match="saved no model"):
        load_judged(EvaluateConfig(str(tmp_path)))


def test_rows_that_were_run_are_found_whatever_the_batch(folders, tmp_path):
    judged = load_judged(settings(folders, tmp_path))
    journal, shares = Journal(tmp_path / "answers.jsonl"), []
    rows = judged.workload.test.spread(4)
    first = measure_rows(judged, rows, 3, journal, {"of": "a"}, shares.append)
    assert shares == [0.75, 1.0]
    assert measure_rows(judged, rows, 1, journal, {"of": "a"}) == first
    assert len(first) == 4 and first[0].keys() >= {"labels", "own", "reference", "kl", "same"}


@pytest.mark.long
def test_the_card_gets_the_results(folders, tmp_path):
    folder = shutil.copytree(folders / "packed", tmp_path / "model")
    before = card_rows(folder / "README.md")
    text = (folder / "README.md").read_text()
    found = evaluate(replace(settings(folders, tmp_path / "out", card=True), model=str(folder)))
    rows, kl = card_rows(folder / "README.md"), found.rows.kl
    low, high = kl.interval
    assert rows["divergence from the float model"].startswith(
        f"KL divergence {kl.value:.4g} nats (95 % interval {low:.3g} to {high:.3g}), mean over "
        f"{found.rows.answers:,} answers on 5 "
    )
    perplexity = rows[TASKS["causal-lm"].metric.title]
    assert perplexity.startswith(f"{found.rows.own.value:.2f} (95 % interval ")
    assert f"float {found.rows.reference.value:.2f}" in perplexity
    assert f"{100 * found.rows.same.value:.2f}" in rows["same answers as the float model"]
    assert {name: rows[name] for name in before} == before and [*rows][-1] == "versions"
    # All other lines stay, and a second evaluation replaces the rows.
    assert is_own(folder / "README.md")
    lines = (folder / "README.md").read_text().splitlines()
    assert [x for x in text.splitlines()[:-1] if x not in lines] == []
    evaluate(replace(settings(folders, tmp_path / "out", card=True, limit=3), model=str(folder)))
    again = card_rows(folder / "README.md")
    assert again.keys() == rows.keys() and again != rows


def test_a_metric_with_several_filters_has_a_row_for_each(folders, tmp_path):
    """Tasks such as GSM8K score the same answers by several filters."""
    folder = shutil.copytree(folders / "packed", tmp_path / "model")
    workload = load_judged(replace(settings(folders, tmp_path), model=str(folder))).workload
    rows = RowResult(3, 6, "perplexity", Measured(2.0, None))
    scores = (
        TaskScore("gsm8k", "exact_match", "strict-match", 1319, 0.25, 0.01),
        TaskScore("gsm8k", "exact_match", "flexible-extract", 1319, 0.5, 0.02, 0.75, 0.03),
        TaskScore("words", "acc", "none", None, 0.5, None),
    )
    found = Evaluation("model", "", "texts", rows, scores)
    add_results(folder / "README.md", found, workload)
    rows = card_rows(folder / "README.md")
    assert rows["lm-eval gsm8k, exact_match (strict-match)"] == "0.25 ± 0.01; 1,319 questions"
    flexible = "0.5 ± 0.02; float 0.75 ± 0.03; 1,319 questions"
    assert rows["lm-eval gsm8k, exact_match (flexible-extract)"] == flexible
    assert rows["lm-eval words, acc"] == "0.5"


def test_a_card_keeps_rows_with_any_name(folders, tmp_path):
    card = shutil.copytree(folders / "packed", tmp_path / "model") / "README.md"
    extend_table(card, {"Score": "1", "_private": "2"})
    extend_table(card, {"other": "3"})
    assert {"Score": "1", "_private": "2", "other": "3"}.items() <= card_rows(card).items()


def test_an_edited_card_stays(folders, tmp_path):
    folder = shutil.copytree(folders / "packed", tmp_path / "model")
    card, out = folder / "README.md", tmp_path / "out"
    card.write_text(f"{card.read_text()}mine")
    config = replace(settings(folders, out, card=True), model=str(folder))
    with pytest.raises(ConfigError, match="card: expected a model card that chop wrote, but "):
        evaluate(config)
    assert card.read_text().endswith("mine") and not (out / "answers.jsonl").exists()
