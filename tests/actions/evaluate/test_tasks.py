"""Tasks of lm-eval that a model and its float model are asked, with data on the disk."""

import copy
import json
import random
from dataclasses import replace
from functools import partial, partialmethod

import numpy as np
import pytest
import torch

from chop.actions.evaluate.job import evaluate
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import JournaledModel, ask, compute_scores, read_tasks
from chop.data.stories import NAMES, story
from chop.data.tokenizer import STORY_VOCABULARY, get_tokenizer
from chop.errors import ConfigError, UnavailableError
from chop.models import load_model
from chop.runs import Journal

HAS_LM_EVAL = "lm-eval is not installed: pip install 'mase-chop[eval]'"
CHOICE = """task: chop_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/choice.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - metric: acc
  - metric: acc_norm
"""
TEXT = """task: chop_text
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/text.jsonl
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
"""
ANSWER = """task: chop_answer
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/choice.jsonl
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 6
metric_list:
  - metric: exact_match
"""
CHAT = """{%- if messages[0]['role'] == 'system' %}<s>{% endif -%}
{%- for m in messages %}{{ m['role'] }}: {{ m['content'] }}
{% endfor -%}
{%- if add_generation_prompt %}assistant:{% endif -%}"""
MISSING = CHOICE.replace("chop_choice", "chop_missing").replace("choice.jsonl", "nothing.jsonl")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two decoders of the stories' tokens, and a folder of tasks."""
    pytest.importorskip("lm_eval", reason=HAS_LM_EVAL)
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("tasks")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
    config = LlamaConfig(vocab_size=STORY_VOCABULARY, **sizes, **heads, pad_token_id=0)
    tokenizer = copy.deepcopy(get_tokenizer("stories"))
    tokenizer.chat_template = CHAT
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    for name in ("float", "other"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(6 if parameter.dim() > 1 else 1)
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    draw = random.Random(0)
    texts = [story(draw) for _ in range(20)]
    questions = [
        {
            "question": text.rpartition("? ")[0] + "?",
            "choices": list(draw.sample(NAMES, 4)),
            "answer": draw.randrange(4),
        }
        for text in texts
    ]
    (place / "choice.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (place / "text.jsonl").write_text("\n".join(json.dumps({"text": x}) for x in texts))
    (place / "data.jsonl").write_text("\n".join(json.dumps({"text": x}) for x in texts))
    tasks = {"choice": CHOICE, "text": TEXT, "answer": ANSWER, "missing": MISSING}
    for name, text in tasks.items():
        (place / f"{name}.yaml").write_text(text.format(folder=place))
    return place


def settings(place, out, *tasks, **given):
    data = str(place / "data.jsonl")
    how = {"include_path": place, "reference": str(place / "float"), "dataset": data, "out": out}
    return EvaluateConfig(str(place / "other"), tasks, **{**how, "limit": 8, **given})


def ask_task(place, tmp_path, task, **given):
    config = settings(place, tmp_path, task, **given)
    model, tokenizer = load_model(place / "other"), get_tokenizer(place / "other")
    journal = Journal(tmp_path / f"{given.get('batch_size', 8)}.jsonl")
    return ask(
        model, tokenizer, task, config, read_tasks(config)[task], journal, {"model": "other"}
    )


def log_likelihood(model, tokenizer, context, continuation):
    """Of a continuation alone, one text at a time, without padding."""
    whole, begin = (tokenizer(x)["input_ids"] for x in (context + continuation, context))
    return of_tokens(model, whole, len(begin))


@torch.no_grad()
def of_tokens(model, ids, begin):
    """Log likelihood of the tokens from a place on."""
    logits = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(logits[i - 1, ids[i]].item() for i in range(begin, len(ids)))


@pytest.mark.parametrize("batch_size", [1, 5])
def test_answers_are_those_of_a_direct_computation(place, tmp_path, batch_size):
    found = ask_task(place, tmp_path, "chop_choice", batch_size=batch_size)
    model, tokenizer = load_model(place / "other"), get_tokenizer(place / "other")
    samples = found["samples"]["chop_choice"]
    right = 0
    for sample in samples:
        scores = [log_likelihood(model, tokenizer, *pair) for pair in sample["arguments"]]
        given = [answer[0] for answer in sample["filtered_resps"]]
        assert given == pytest.approx(scores, rel=1e-4, abs=1e-4)
        right += max(range(4), key=scores.__getitem__) == sample["doc"]["answer"]
    assert len(samples) == 8
    assert found["results"]["chop_choice"]["acc,none"] == right / 8


def test_whole_texts_have_the_perplexity_of_a_direct_computation(place, tmp_path):
    found = ask_task(place, tmp_path, "chop_text", batch_size=3)
    model, tokenizer = load_model(place / "other"), get_tokenizer(place / "other")
    total = words = 0
    for line in (place / "text.jsonl").read_text().splitlines()[:8]:
        text = json.loads(line)["text"]
        # lm-eval puts a <s> in front of the tokenizer's own.
        total += of_tokens(model, [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]], 1)
        words += len(text.split())
    value = found["results"]["chop_text"]["word_perplexity,none"]
    assert np.log(value) == pytest.approx(-total / words, rel=1e-4)


def test_numbers_are_those_of_lm_eval_itself(place, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    config = settings(place, tmp_path, "chop_choice", num_fewshot=2)
    model, tokenizer = load_model(place / "other"), get_tokenizer(place / "other")
    loaded = read_tasks(config)["chop_choice"]

    def asked(name):
        how = (config, loaded, Journal(tmp_path / name), {})
        return ask(model, tokenizer, "chop_choice", *how)

    own, again = asked("a.jsonl"), asked("b.jsonl")
    # Examples are drawn anew for each model, the same ones.
    assert again["results"] == own["results"]
    questions = [[x["arguments"] for x in each["samples"]["chop_choice"]] for each in (own, again)]
    assert questions[0] == questions[1]
    theirs = simple_evaluate(
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8),
        tasks=["chop_choice"],
        num_fewshot=2,
        limit=8,
        task_manager=TaskManager(include_path=str(place), include_defaults=False),
    )
    assert own["results"] == theirs["results"]
    assert own["n-shot"] == theirs["n-shot"] == {"chop_choice": 2}


def test_the_job_counts_flips_and_goes_on(place, tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager

    config = settings(place, tmp_path, "chop_choice", "chop_text")
    state, global_torch = random.getstate(), torch.get_rng_state()
    load, loaded = TaskManager.load, []

    def counted(manager, names):
        loaded.extend(names)
        return load(manager, names)

    with monkeypatch.context() as patched:
        patched.setattr(TaskManager, "load", counted)
        found = evaluate(config)
    assert loaded == ["chop_choice", "chop_text"]  # once, for both models
    assert random.getstate() == state and torch.equal(torch.get_rng_state(), global_torch)
    scores = {(score.task, score.metric): score for score in found.tasks}
    names = {("chop_choice", "acc"), ("chop_choice", "acc_norm"), ("chop_text", "word_perplexity")}
    assert scores.keys() == names
    accuracy, perplexity = scores["chop_choice", "acc"], scores["chop_text", "word_perplexity"]
    assert (accuracy.questions, accuracy.filter) == (8, "none")
    assert accuracy.stderr > 0 and accuracy.reference_stderr is not None
    assert accuracy.lost + accuracy.won == round(8 * accuracy.flips.value)
    assert accuracy.own - accuracy.reference == pytest.approx((accuracy.won - accuracy.lost) / 8)
    assert (perplexity.flips, perplexity.stderr) == (None, None)
    assert (tmp_path / "tasks.svg").exists()
    assert "chop_choice" in (tmp_path / "table.md").read_text()
    for kind in ("loglikelihood", "loglikelihood_rolling"):
        monkeypatch.setattr(f"lm_eval.models.huggingface.HFLM.{kind}", None)
    assert evaluate(config) == found  # every answer is in the journal


class Request:
    def __init__(self, *args):
        self.args = args


class Asked:
    """Model of lm-eval that is interrupted after `stop` batches of four questions."""

    tokenizer = apply_chat_template = None
    max_length, tokenizer_name = 9, ""

    def __init__(self, stop=None):
        self.stop, self.asked, self.calls = stop, 0, 0

    def set_cache_hook(self, hook):
        self.hook = hook

    def loglikelihood(self, requests, disable_tqdm):
        self.calls += 1
        ordered = sorted(requests, key=lambda request: -len(request.args[0]))  # as lm-eval does
        for start in range(0, len(ordered), 4):
            if start == 4 * (self.stop or len(ordered)):
                raise KeyboardInterrupt
            for request in ordered[start : start + 4]:
                self.asked += 1
                answer = (-1.0 * len(request.args[0]), True)
                self.hook.add_partial("loglikelihood", request.args, answer)

    def loglikelihood_rolling(self, requests, disable_tqdm):
        self.calls += 1
        for request in requests:
            self.hook.add_partial("loglikelihood_rolling", request.args, -2.0)


def test_a_kill_loses_the_batch_in_work(tmp_path):
    requests = [Request("x" * (i % 50), "y") for i in range(40)] + [Request("x", "y")]
    shares = []

    def model(asked, identity):
        return JournaledModel(asked, 2, Journal(tmp_path / "a.jsonl"), identity, shares.append)

    with pytest.raises(KeyboardInterrupt):
        model(Asked(stop=3), {}).loglikelihood(requests)
    assert len(shares) == 12 and shares[-1] == 12 / 41
    again = Asked()
    expected = [(-1.0 * len(request.args[0]), True) for request in requests]
    assert model(again, {}).loglikelihood(requests) == expected
    assert (again.asked, again.calls, shares[-1]) == (29, 1, 1)
    other = Asked()
    assert model(other, {"model": "b"}).loglikelihood(requests) == expected
    assert other.asked == 41
    assert model(other, {}).loglikelihood_rolling(requests) == [-2.0] * 41
    assert other.calls == 1 + 2  # chunks of 16 batches of two


def test_what_cannot_be_asked_is_refused_before_anything_is_written(place, tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager

    # lm-eval's own tasks are thousands of files.
    few = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", few)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="no task or group 'chop_choise'.*chop_choice"):
        read_tasks(settings(place, out, "chop_choise"))
    with pytest.raises(
        UnavailableError, match="data of 'chop_missing' cannot be read .*--tasks FILE"
    ):
        evaluate(settings(place, out, "chop_missing"))
    with pytest.raises(ConfigError, match="is not a folder"):
        evaluate(settings(place, out, "chop_choice", include_path=place / "none"))
    digits = EvaluateConfig("mlp", ("chop_choice",), include_path=place, limit=4, out=out)
    with pytest.raises(ConfigError, match="'mlp' is a model for classification"):
        evaluate(digits)
    assert not (out / "manifest.json").exists()


def test_settings_that_lm_eval_would_leave_or_refuse_late_are_refused(place, tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager

    text = CHOICE.format(folder=place).replace("chop_choice", "chop_zero") + "num_fewshot: 0\n"
    (tmp_path / "zero.yaml").write_text(text)
    few = settings(place, tmp_path, "chop_zero", include_path=tmp_path, num_fewshot=3)
    with pytest.raises(ConfigError, match="num_fewshot: .* got 3: 'chop_zero' does not support"):
        read_tasks(few)
    read_tasks(replace(few, num_fewshot=0))
    load = TaskManager.load

    def marked(manager, names, mark):
        loaded = load(manager, names)
        for task in loaded["tasks"].values():
            setattr(task, mark, True)
        return loaded

    for mark, message in {"UNSAFE_CODE": "runs code", "MULTIMODAL": "images or sound"}.items():
        monkeypatch.setattr(TaskManager, "load", partialmethod(marked, mark=mark))
        with pytest.raises(ConfigError, match=f"tasks: 'chop_choice' .*{message}"):
            read_tasks(settings(place, tmp_path, "chop_choice"))


def test_groups_and_answers_that_are_neither_right_nor_wrong_have_no_flips():
    numbers = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": "N/A", "f1,none": 0.25}
    sample = {"doc_id": 0, "filter": "none", "f1": 0.3}
    found = {"results": {"group": numbers}, "samples": {"leaf": [sample]}}
    accuracy, f1 = compute_scores(found, found)
    assert (accuracy.metric, accuracy.own, accuracy.stderr) == ("acc", 0.5, None)
    assert accuracy.flips is f1.flips is None and accuracy.questions is None
    leaf = {**found, "results": {"leaf": {"f1,none": 0.3}}}
    (score,) = compute_scores(leaf, leaf)
    assert (score.questions, score.reference, score.flips) == (1, 0.3, None)


def test_errors_of_chop_are_not_put_down_to_lm_eval(place, tmp_path, monkeypatch):
    import lm_eval

    def fail(*_, **__):
        raise ConfigError("journal: it is of another model.")

    monkeypatch.setattr(lm_eval, "evaluate", fail)
    with pytest.raises(ConfigError, match=r"^journal: it is of another model\.$"):
        ask_task(place, tmp_path, "chop_choice")
