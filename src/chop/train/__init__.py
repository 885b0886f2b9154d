"""Training and evaluation.

`fit(model, dataset, *, epochs=1, lr=1e-3, batch_size=64, ...)` -> loss of each epoch;
`Distillation(alpha, temperature, hidden, teacher)` -> settings for `fit(distill=...)`;
`evaluate(model, dataset, *, batch_size=None, metric=None, task=None, ...)` -> float;
`get_trainer(model, tokenized_dataset, tokenizer=None, ...)` -> a Hugging Face Trainer;
`GradualPruning(mg, config)` -> prunes during `fit` or a Trainer's training;
`load_trained(name, *, seed=0, progress=False, held_out=0.0)` -> a trained built-in model;
`default_dataset(name)` -> the data set that it was trained on.
"""

from chop.base.elsewhere import refuse_calls
from chop.train.calibration import calibration_batches
from chop.train.device import usable_device
from chop.train.distillation.settings import Distillation
from chop.train.judge import Judge
from chop.train.metric import Metric
from chop.train.metrics import METRICS, find_metric
from chop.train.pretrained import default_dataset, load_trained
from chop.train.pruning import PRUNING_SCHEDULES, GradualPruning
from chop.train.rows import VALIDATION_SHARE, Rows, read_label_column, read_rows, split_rows
from chop.train.seeds import seed_everything
from chop.train.tasks import CAUSAL_LM, TASKS, Task, find_task
from chop.train.train_loop import SCHEDULES, evaluate, fit, fit_and_report, predict
from chop.train.trainer import get_trainer

__all__ = [
    "CAUSAL_LM",
    "METRICS",
    "PRUNING_SCHEDULES",
    "SCHEDULES",
    "TASKS",
    "VALIDATION_SHARE",
    "Distillation",
    "GradualPruning",
    "Judge",
    "Metric",
    "Rows",
    "Task",
    "calibration_batches",
    "default_dataset",
    "evaluate",
    "find_metric",
    "find_task",
    "fit",
    "fit_and_report",
    "get_trainer",
    "load_trained",
    "predict",
    "read_label_column",
    "read_rows",
    "seed_everything",
    "split_rows",
    "usable_device",
]

refuse_calls(__name__, "chop.train.fit")
