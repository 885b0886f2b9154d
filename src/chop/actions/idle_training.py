"""Notes on training: its default learning rate, and results that it did not improve."""

from __future__ import annotations

from chop.base.notices import assume
from chop.workloads.workload import Training


def describe_idle_training(metric: str, settings: str, options: str) -> str:
    """Returns a sentence on training that changed no score, with a way out.

    Args:
        metric: name of the metric.
        settings: formats or points that were trained.
        options: prefix of the options of training, qat or finetune.
    """
    return (
        f"Training did not change the {metric} of {settings}. Train for more epochs "
        f"(--{options}-epochs) or at a higher rate (--{options}-lr)."
    )


def assume_rate(training: Training, lr: float | None, options: str) -> None:
    """Records the learning rate of training as an assumption, unless the user has set it.

    Args:
        training: arguments of training.
        lr: learning rate of the settings; None for the default.
        options: see `describe_idle_training`.
    """
    if training["epochs"] and lr is None:
        epochs = f"{training['epochs']} epoch{'s' * (training['epochs'] > 1)}"
        assume(
            f"Each point is trained for {epochs} at a peak learning rate of {training['lr']:.3g} "
            f"(--{options}-epochs, --{options}-lr)."
        )
