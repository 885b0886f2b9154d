"""Settings of `chop search precision`, `nas`, `shape` and `sensitivity`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from chop.actions.emit.circuit_settings import CircuitOptions
from chop.actions.search.format_settings import FormatSettings
from chop.base.notices import assume
from chop.config import MORE, Range
from chop.errors import ConfigError, check_known
from chop.workloads.settings import DistillConfig, JudgedConfig, WorkloadConfig

if TYPE_CHECKING:
    from chop.problems.nas.compression import Compression
    from chop.search import Constraint, Goal, Search, SearchSpace
    from chop.search.objective import Direction, Goals, Measure

USUAL_BITS = 4.0
"""Default budget of bits per weight."""


@dataclass(frozen=True)
class SearchConfig(WorkloadConfig):
    """Trials, sampler and storage of a search.

    Attributes:
        trials: total number of configurations. Those of earlier runs are included.
        sampler: search method, such as tpe. It proposes the configurations.
        pruner: early stopping of trials that are behind, such as asha. Default: none.
        workers: processes on this machine that run trials.
        storage: `postgresql://user@host/db` for many machines, or a file. Default: a SQLite file in
            `out`.
        name: name of the study in the storage and of its folder in `out`. Default: the job's.
        keep: number of best models to save.
        seeds: number of searches, with seeds from `seed` on, compared in OUT/NAME-compared.
        samplers: samplers to compare, with a search of `trials` trials for each and each seed.
            Default: only `sampler`.

    The other settings are those of `WorkloadConfig`.
    """

    JOB_NAME: ClassVar[str] = "search"
    trials: Annotated[int, Range(1, 10**9)] = 100
    sampler: str = "sensitivity"
    pruner: str | None = field(default=None, metadata=MORE)
    workers: Annotated[int, Range(1, 1024)] = 1
    storage: str | None = field(default=None, metadata=MORE)
    name: str | None = field(default=None, metadata=MORE)
    keep: Annotated[int, Range(0, 10_000)] = field(default=1, metadata=MORE)
    seeds: Annotated[int, Range(1, 100)] = field(default=1, metadata=MORE)
    samplers: tuple[str, ...] = field(default=(), metadata=MORE)

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.name or self.JOB_NAME

    @property
    def folder(self) -> Path:
        """Output folder of the study; several studies can share `out` and its storage."""
        return self.out / self.study

    @property
    def url(self) -> str:
        """URL of the storage."""
        from chop.search.location import storage_url

        return storage_url(self.storage, self.out)

    @property
    def where(self) -> str:
        """Arguments that name the study in commands, quoted for a shell; "" if it is in memory."""
        from chop.search.location import MEMORY, without_password

        if self.storage is None:
            return shlex.quote(str(self.folder))
        if self.url == MEMORY:
            return ""
        return f"{shlex.quote(without_password(self.url))} --name {shlex.quote(self.study)}"

    def search(self, space: SearchSpace, measure: Measure, goals: Goals, **further: Any) -> Search:
        """Returns the search of these settings; `further` are arguments of `chop.search.Search`."""
        from chop.problems.mixed_precision.costs import COSTS
        from chop.problems.nas.goals import SIZES
        from chop.search import Search

        if {goal.name for goal in goals} <= {*COSTS, *SIZES}:
            assume(
                "The smallest model is the best, whatever its accuracy, since goals and budgets "
                "are sizes; also name a score (accuracy, or the metric of another task), as in "
                f"--goals accuracy,{goals[0].name} or --budgets accuracy=0.9."
            )
        names = ("sampler", "pruner", "storage", "out", "seed", "keep")
        own = {name: getattr(self, name) for name in names}
        return Search(space, measure, goals, name=self.study, **own, **further)

    def __post_init__(self) -> None:
        from chop.search.location import check_study_name, storage_url
        from chop.search.registry import make_pruner, sampler_row

        super().__post_init__()
        check_study_name(self.study)
        for sampler in (self.sampler, *self.samplers):
            sampler_row(sampler)
        make_pruner(self.pruner)
        storage_url(self.storage, self.out)


@dataclass(frozen=True)
class SensitivityConfig(FormatSettings, WorkloadConfig):
    """Settings of `chop search sensitivity`.

    Attributes:
        metrics: per-layer metrics, as kl,fisher. Choices: kl, mse, weight_error, fisher, hessian,
            activation_variance.
        vectors: random vectors that estimate the Hessian's trace.

    The other settings are those of `FormatSettings` and `WorkloadConfig`.
    """

    out: Path = Path("runs/sensitivity")
    metrics: tuple[str, ...] = (
        *("kl", "mse", "weight_error", "fisher", "hessian", "activation_variance"),
    )
    vectors: Annotated[int, Range(1, 10_000)] = field(default=16, metadata=MORE)

    def __post_init__(self) -> None:
        from chop.problems.mixed_precision.layer_sensitivity import check_metrics

        super().__post_init__()
        self.read_formats()
        check_metrics(self.metrics)


@dataclass(frozen=True)
class PrecisionConfig(JudgedConfig, DistillConfig, CircuitOptions, FormatSettings, SearchConfig):
    """Settings of `chop search precision`.

    Attributes:
        goals: objectives, as accuracy,bits. Choices: accuracy (or the metric of another task),
            loss, kl, bits, activation_bits, bytes, bit_operations; for the model's circuit lut, ff,
            dsp, bram, interval (cycles), latency_us. Several give a Pareto front. kl, the
            divergence from the float model's outputs, still ranks formats if accuracy is
            saturated. It needs classes; other outputs use loss, and `evaluate` its own number.
        per: `operand` for one choice per operand of a layer, `layer` for one per layer.
        joined: one choice for layers that vLLM and SGLang merge (q_proj, k_proj and v_proj;
            gate_proj and up_proj). Default: yes for language models.
        budgets: largest cost, least accuracy. They are constraints on any value of goals. Example:
            `bits=4`. Default: bits=4 for a single objective that is not a cost, if a format has
            fewer bits; none with `per_format`.
        per_format: one search for each of `formats`, compared in OUT/NAME-compared. Each format
            uses only its own fields of `ranges`.
        warm_start: begin with uniform formats and closed-form assignments. Without it the table has
            neither. Default: yes, but not with `per_format`.
        search_rows: maximum number of validation rows that measure trials. Training rows are used
            if there are fewer than 100 validation rows and nothing is trained.
        epochs: epochs of QAT in each trial. All trials start from the same weights; 0 measures PTQ.
        lr: peak learning rate of QAT. Default: 1e-4; for built-in models 3e-3,
            and less for fewer than 15 epochs.

    The other settings are those of `JudgedConfig`, `DistillConfig`, `CircuitOptions`,
    `FormatSettings` and `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "precision"
    USUAL_WIDTHS: ClassVar[str | None] = "2:8:1"

    out: Path = Path("runs/search")
    goals: tuple[str, ...] = ("kl",)
    per: Literal["layer", "operand"] = field(default="operand", metadata=MORE)
    joined: bool | None = field(default=None, metadata=MORE)
    budgets: Mapping[str, float] | None = None
    per_format: bool = field(default=False, metadata=MORE)
    warm_start: bool | None = field(default=None, metadata=MORE)
    search_rows: Annotated[int, Range(1, 10**9)] = field(default=2000, metadata=MORE)
    epochs: Annotated[int, Range(0, 10_000)] = 0
    lr: Annotated[float | None, Range(1e-12, 1e3)] = field(default=None, metadata=MORE)
    distill: bool = field(default=False, metadata=MORE)  # most searches train nothing

    def __post_init__(self) -> None:
        from chop.problems.mixed_precision.costs import COSTS
        from chop.search.objective import select_objectives

        super().__post_init__()
        if self.judged_name is not None and self.goals == ("kl",):
            object.__setattr__(self, "goals", (self.judged_name,))
        self.read_formats()
        select_objectives(self.all_goals())
        self.check_circuit()
        if self.emit and self.epochs:
            raise ConfigError(
                "emit: expected no epochs, because weights of trials cannot be emitted."
            )
        if self.pruner is not None and self.goals[0] in COSTS:
            raise ConfigError(
                f"pruner: '{self.goals[0]}' is known before a trial runs; leave pruner out."
            )
        if self.lr is not None and not self.epochs:
            raise ConfigError(
                f"lr: got {self.lr:g}, but trials are not trained: pass epochs as well."
            )

    def goal_names(self) -> tuple[str, ...]:
        """Returns the names that goals and budgets refer to."""
        return (*self.goals, *(self.budgets or ()))

    def identity(self) -> dict[str, Any]:
        """Returns all settings that determine a result, as plain JSON."""
        own = {"evaluate": self.evaluate, "metric": self.metric, "loss": self.loss}
        judged = own if self.evaluate or self.loss else {}
        return super().identity() | self.circuit_identity() | judged

    @property
    def begins_warm(self) -> bool:
        """True if the first trials are uniform formats and closed-form assignments."""
        return not self.per_format if self.warm_start is None else self.warm_start

    def all_goals(self) -> tuple[Goal | Constraint, ...]:
        """Returns the objectives, then the constraints."""
        from chop.problems.mixed_precision.costs import COSTS
        from chop.problems.mixed_precision.goals import precision_goals
        from chop.train.tasks import find_task

        budgets = self.budgets
        if budgets is None:
            is_one_score = len(self.goals) == 1 and self.goals[0] not in COSTS
            narrowest = min(fmt.bits() for fmt in self.candidates().values())
            has_usual = is_one_score and not self.per_format and narrowest < USUAL_BITS
            budgets = {"bits": USUAL_BITS} if has_usual else {}
        # Metrics of several outputs have the names of the outputs in theirs.
        metrics = {} if self.task is None else find_task(self.task).metrics
        directions: dict[str, Direction] = {
            name: "maximize" if metric.higher_is_better else "minimize"
            for name, metric in metrics.items()
        }
        if self.judged_name is not None:
            directions[self.judged_name] = "minimize" if self.lower_is_better else "maximize"
        given = precision_goals(self.goals, budgets, directions)
        limits = self.device_limits()
        return (*given, *(limits[name] for name in limits if name not in self.goal_names()))


@dataclass(frozen=True)
class NasConfig(JudgedConfig, DistillConfig, SearchConfig):
    """Settings of `chop search nas`.

    Attributes:
        fields: values of fields of the model's configuration. Example: `hidden_size=32,64`.
            Default: half, once and twice the number of layers and of heads, hidden size and
            intermediate size.
        square_layers: candidates for each linear layer with as many inputs as outputs; the first
            is the default.
        goals: objectives, as accuracy,parameters. The third choice is size_bytes. Several give a
            Pareto front. With `evaluate`, accuracy means its number.
        budgets: largest cost, least accuracy. They are constraints on any value of goals. Example:
            `parameters=20000`. Default: none.
        epochs: epochs of training in each trial.
        lr: peak learning rate of each trial.
        validation: share of the training rows that evaluates trials; test rows evaluate only the
            best.
        compression: evaluate models as they are, or compressed. `compress-train` trains them again
            after compression.
        pass_args: settings of the compression passes, by pass. Example:
            'prune_transform_pass = {"weight": {"sparsity": 0.3}}'. Default: 4-bit integers and 50 %
            sparsity.
        compression_epochs: epochs of training after compression, for `compress-train`.
        proxy: score that filters architectures before training. It is a zero-cost proxy, such as
            synflow. Default: none.
        share: share of architectures that pass the proxy.

    The other settings are those of `JudgedConfig`, `DistillConfig` and `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "nas"
    out: Path = Path("runs/search")
    trials: Annotated[int, Range(1, 10**9)] = 40
    fields: Mapping[str, tuple[Any, ...]] | None = None
    square_layers: tuple[str, ...] = field(default=("Linear", "Identity"), metadata=MORE)
    goals: tuple[str, ...] = ("accuracy",)
    budgets: Mapping[str, float] = field(default_factory=dict)
    epochs: Annotated[int, Range(1, 10_000)] = 5
    lr: Annotated[float, Range(1e-9, 10)] = field(default=3e-3, metadata=MORE)
    validation: Annotated[float, Range(0.01, 0.9)] = field(default=0.2, metadata=MORE)
    compression: Literal["none", "compress", "compress-train"] = "none"
    pass_args: Mapping[str, Any] | None = field(default=None, metadata=MORE)
    compression_epochs: Annotated[int, Range(0, 10_000)] = field(default=2, metadata=MORE)
    proxy: str | None = None
    share: Annotated[float, Range(0.001, 1)] = field(default=0.25, metadata=MORE)

    def __post_init__(self) -> None:
        from chop.problems.nas.architecture import SQUARE_LAYERS
        from chop.problems.nas.proxies import PROXIES

        super().__post_init__()
        if self.judged_name is not None:
            named = {"accuracy": self.judged_name}
            goals = tuple(named.get(name, name) for name in self.goals)
            budgets = {named.get(name, name): bound for name, bound in self.budgets.items()}
            object.__setattr__(self, "goals", goals)
            object.__setattr__(self, "budgets", budgets)
        for where, names, known in (
            ("square_layers", self.square_layers, SQUARE_LAYERS),
            ("proxy", (self.proxy,) if self.proxy else (), PROXIES),
        ):
            for name in names:
                check_known(name, known, f"{where}: unknown")
        self.all_goals()
        self.compression_settings()

    def compression_settings(self) -> Compression:
        """Returns the settings of the compression of trained models."""
        from chop.problems.nas.compression import PASS_ARGS, Compression

        pass_args = PASS_ARGS if self.pass_args is None else self.pass_args
        return Compression(self.compression, pass_args, self.compression_epochs)

    def all_goals(self) -> tuple[Goal | Constraint, ...]:
        """Returns the objectives, then the constraints."""
        from chop.problems.nas.goals import nas_goals

        judged: dict[str, Direction] | None = None
        if self.judged_name is not None:
            judged = {self.judged_name: "minimize" if self.lower_is_better else "maximize"}
        return nas_goals(self.goals, self.budgets, judged)


@dataclass(frozen=True)
class ShapeConfig(SearchConfig):
    """Settings of `chop search shape`.

    Attributes:
        max_params: largest number of parameters. A number below 1 is a share of the model's.
        least_share: smallest share of that budget. Shapes with fewer parameters are not measured.
        layers: numbers of layers to choose from, as 16,20,24. Default: eighths of the model's
            number, from half of it on. One number fixes the size, and the model's own leaves it
            out of the search.
        mlp_width: MLP widths to choose from. Default: as for layers.
        kv_heads: numbers of key-value heads to choose from. Default: as for layers.
        hidden_size: widths of the residual stream to choose from. Default: as for layers.
        goals: objectives. Choices: kl (divergence from the original's answers), perplexity (or
            another metric), loss, parameters. Several give a Pareto front.
        calibration_rows: number of training rows that rank layers, channels and heads.
        search_rows: maximum number of validation rows that measure trials. Training rows are used
            if there are fewer than 100 validation rows.

    The other settings are those of `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "shape"
    model: str = "gpt-tiny"
    out: Path = Path("runs/search")
    trials: Annotated[int, Range(1, 10**9)] = 40
    max_params: Annotated[float, Range(above=0)] = 0.8
    least_share: Annotated[float, Range(0, 1)] = field(default=0.9, metadata=MORE)
    layers: Annotated[tuple[int, ...], Range(1)] = ()
    mlp_width: Annotated[tuple[int, ...], Range(1)] = ()
    kv_heads: Annotated[tuple[int, ...], Range(1)] = ()
    hidden_size: Annotated[tuple[int, ...], Range(1)] = ()
    goals: tuple[str, ...] = ("kl",)
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=128, metadata=MORE)
    search_rows: Annotated[int, Range(1, 10**9)] = field(default=2000, metadata=MORE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.all_goals(1)
        if self.pruner is not None:
            raise ConfigError("pruner: trials are not trained, so that none can stop early.")
        if self.max_params >= 1 and not (self.max_params > 100 and self.max_params % 1 == 0):
            raise ConfigError(
                "max_params: expected a share of the model's parameters below 1, such as 0.8, or a "
                f"whole number of parameters above 100, got {self.max_params:g}."
            )

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Given sizes by field of the model's configuration."""
        from chop.actions.prune.settings import SIZES

        given = {field: getattr(self, name) for name, field in SIZES.items()}
        return {field: sizes for field, sizes in given.items() if sizes}

    def budget(self, parameters: int) -> int:
        """Returns the largest number of parameters of a shape of a model with `parameters`."""
        return int(self.max_params * parameters if self.max_params < 1 else self.max_params)

    def all_goals(self, budget: int) -> tuple[Goal | Constraint, ...]:
        """Returns the objectives, then the budget of parameters as a constraint."""
        from chop.problems.shape import PARAMETERS, directions
        from chop.search.objective import named_goals
        from chop.train.tasks import CAUSAL_LM, find_task

        metric = find_task(CAUSAL_LM).with_metric(self.metric).metric
        known = directions(metric.name, metric.higher_is_better)
        return named_goals(self.goals, {PARAMETERS: budget}, known, (PARAMETERS,))
