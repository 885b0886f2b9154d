"""Numbers of `chop evaluate --tasks` and of lm-eval's own command, setting by setting."""

import json
import sys
from functools import partial

import pytest

from chop.actions.evaluate.job import evaluate
from chop.actions.evaluate.settings import EvaluateConfig
from chop.actions.evaluate.tasks import read_tasks
from chop.errors import ConfigError, UnavailableError
from tests.actions.evaluate.test_tasks import ask_task, place, settings

__all__ = ["place"]  # a fixture

SYSTEM = "Answer with one name."
SAMPLED = {"do_sample": True, "temperature": 0.7, "max_gen_toks": 4}
CASES = {
    "plain": ({}, []),
    "examples": ({"num_fewshot": 2}, ["--num_fewshot", "2"]),
    "system": ({"system_instruction": SYSTEM}, ["--system_instruction", SYSTEM]),
    "chat": (
        {"apply_chat_template": True, "system_instruction": SYSTEM},
        ["--apply_chat_template", "--system_instruction", SYSTEM],
    ),
    "turns": (
        {"apply_chat_template": True, "num_fewshot": 2},
        ["--apply_chat_template", "--num_fewshot", "2"],
    ),
    "one turn": (
        {"apply_chat_template": True, "num_fewshot": 2, "fewshot_as_multiturn": False},
        ["--apply_chat_template", "--num_fewshot", "2", "--fewshot_as_multiturn", "false"],
    ),
    "bos": ({"add_bos_token": True}, ["--model_args", "add_bos_token=True"]),
    "no bos": ({"add_bos_token": False}, ["--model_args", "add_bos_token=False"]),
    "sampled": (
        {"gen_kwargs": SAMPLED},
        ["--gen_kwargs", "do_sample=True", "temperature=0.7", "max_gen_toks=4"],
    ),
    "length": ({"max_length": 24, "limit": 5}, ["--model_args", "max_length=24", "--limit", "5"]),
}
TASKS = ("chop_choice", "chop_answer")


@pytest.fixture
def command(place, tmp_path, monkeypatch):
    """Runs lm-eval's command on the folder of the model, and returns results and samples."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.tasks import TaskManager

    # lm-eval's own tasks are thousands of files.
    few = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", few)

    def run(*words, tasks=TASKS):
        model = ["--model", "hf", "--device", "cpu", "--batch_size", "8", "--model_args"]
        what = ["--tasks", ",".join(tasks), "--include_path", str(place)]
        out = ["--output_path", str(tmp_path / "theirs"), "--log_samples"]
        line = ["lm_eval", "run", *model, f"pretrained={place / 'other'}", *what, *out, *words]
        monkeypatch.setattr(sys, "argv", line)
        cli_evaluate()
        (file,) = (tmp_path / "theirs").rglob("results_*.json")
        samples = {
            task: [json.loads(line) for line in path.read_text().splitlines()]
            for task in json.loads(file.read_text())["results"]
            for path in file.parent.glob(f"samples_{task}_*.jsonl")
        }
        return json.loads(file.read_text())["results"], samples

    return run


def as_written(answer):
    """Answer as lm-eval's command writes it: a text, or a log likelihood and `True` or `False`."""
    return answer if isinstance(answer, str) else [str(answer[0]), str(answer[1])]


def numbers(results):
    return {name: x for name, x in results.items() if isinstance(x, float)}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_command(command, place, tmp_path, case):
    given, words = CASES[case]
    results, samples = command(*words)
    for task in TASKS:
        how = {name: x for name, x in given.items() if name != "gen_kwargs" or "answer" in task}
        own = ask_task(place, tmp_path / task, task, **{"limit": None, **how})
        assert numbers(own["results"][task]) == numbers(results[task])
        answers, theirs = own["samples"][task], samples[task]
        assert len(answers) == len(theirs) == given.get("limit", 20)
        for mine, other in zip(answers, theirs, strict=True):
            assert mine["doc_id"] == other["doc_id"]
            asked = [pair[0] for pair in mine["arguments"]]
            assert asked == [pair["arg_0"] for pair in other["arguments"].values()]
            assert [list(map(as_written, each)) for each in mine["resps"]] == other["resps"]


def test_the_settings_change_the_questions(place, tmp_path):
    def questions(name, task, **how):
        found = ask_task(place, tmp_path / name, task, limit=1, **how)
        return found["samples"][task][0]["arguments"][0]

    plain = questions("plain", "chop_answer")
    chat = questions("chat", "chop_answer", **CASES["chat"][0])
    assert chat[0] == f"<s>system: {SYSTEM}\nuser: {plain[0]}\nassistant:"
    turns, one = (questions(x, "chop_answer", **CASES[x][0])[0] for x in ("turns", "one turn"))
    assert (turns.count("user:"), turns.count("assistant:")) == (3, 3)
    assert (one.count("user:"), one.count("assistant:")) == (1, 1)
    assert questions("s", "chop_answer", gen_kwargs=SAMPLED)[1]["temperature"] == 0.7

    def likelihoods(bos):
        found = ask_task(place, tmp_path / str(bos), "chop_choice", limit=2, add_bos_token=bos)
        return [sample["resps"] for sample in found["samples"]["chop_choice"]]

    assert likelihoods(True) != likelihoods(False)


def test_a_task_of_one_file_needs_no_folder(command, place, tmp_path):
    file = str(place / "choice.yaml")
    results, _ = command(tasks=(file,))
    config = settings(place, tmp_path, file, include_path=None, limit=None)
    found = {score.metric: score for score in evaluate(config).tasks}
    assert found["acc"].task == "chop_choice" and found["acc"].questions == 20
    assert found["acc"].own == results["chop_choice"]["acc,none"]
    assert found["acc"].stderr == results["chop_choice"]["acc_stderr,none"]
    assert found["acc_norm"].own == results["chop_choice"]["acc_norm,none"]


def test_settings_without_an_effect_are_refused(place, tmp_path):
    with pytest.raises(ConfigError, match="gen_kwargs: none of the tasks generates text"):
        read_tasks(settings(place, tmp_path, "chop_choice", gen_kwargs=SAMPLED))
    prompts = {"apply_chat_template": True, "system_instruction": SYSTEM, "num_fewshot": 1}
    for name, value in prompts.items():
        with pytest.raises(ConfigError, match=f"{name}: 'chop_text' scores whole texts"):
            read_tasks(settings(place, tmp_path, "chop_text", **{name: value}))
    own = settings(place, tmp_path, "chop_choice", tokenizer="stories", apply_chat_template=True)
    with pytest.raises(ConfigError, match=r"the tokenizer of '.*other' has no chat template: pass"):
        evaluate(own)
    unknown = {"warmth": 0.7}
    with pytest.raises(ConfigError, match=r"lm-eval rejects 'chop_answer': .*warmth"):
        ask_task(place, tmp_path, "chop_answer", gen_kwargs=unknown)


def test_a_task_of_the_hub_fails_at_once_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'mase-chop[eval]'")
    import huggingface_hub

    monkeypatch.setattr("chop.base.hub.hub_is_reachable", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    calls = []
    session = huggingface_hub.get_session()
    monkeypatch.setattr(session, "request", lambda *args, **kwargs: calls.append(args))
    (tmp_path / "hub.yaml").write_text(
        "task: hub\ndataset_path: someone/nothing\ntest_split: test\noutput_type: multiple_choice\n"
        "doc_to_text: x\ndoc_to_target: 0\ndoc_to_choice: [a, b]\n"
    )
    config = EvaluateConfig("gpt-tiny", (str(tmp_path / "hub.yaml"),))
    with pytest.raises(UnavailableError, match=r"data of '.*hub.yaml' cannot be read .*--tasks F"):
        read_tasks(config)
    assert not calls and not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    "given, message",
    [
        ({"num_fewshot": 0}, "num_fewshot: applies to tasks only"),
        ({"apply_chat_template": True}, "apply_chat_template: applies to tasks only"),
        ({"system_instruction": "Answer."}, "system_instruction: applies to tasks only"),
        ({"add_bos_token": False}, "add_bos_token: applies to tasks only"),
        ({"gen_kwargs": {"temperature": 0.5}}, "gen_kwargs: applies to tasks only"),
        ({"fewshot_as_multiturn": True, "tasks": ("a",)}, "set apply_chat_template as well"),
        ({"tasks": ("./nothing.yaml",)}, r"tasks: '\./nothing\.yaml' is not a file"),
        ({"gen_kwargs": {"do_sample": "True"}}, "do_sample is the text 'True'; expected true"),
        ({"gen_kwargs": {"temperature": "0.5,top_p=0.9"}}, "repeat --gen-kwargs for each"),
    ],
)
def test_settings_that_do_not_fit_are_refused_without_lm_eval(given, message):
    with pytest.raises(ConfigError, match=message):
        EvaluateConfig("gpt-tiny", **given)
