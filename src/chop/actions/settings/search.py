"""Settings of `chop search precision`, `nas` and `sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from chop.actions.sweep.grid import parse_range, whole
from chop.config import MORE
from chop.errors import ConfigError, check_known
from chop.workloads.settings import Ranges, WorkloadConfig

if TYPE_CHECKING:
    from chop.formats import NumberFormat
    from chop.mixed_precision.circuit import CircuitSettings
    from chop.mixed_precision.problem import PrecisionProblem, Score
    from chop.nas.compression import Compression
    from chop.search import Constraint, Goal, Search, SearchSpace
    from chop.search.objective import Goals, Measure
    from chop.train import Rows
    from chop.workloads.workload import Workload

USUAL_BITS = 4.0
"""The budget of bits per weight where none is given."""
OF_LANGUAGE_MODELS = {"operands": ("weight",), "bias": "float"}
"""What has a format where nobody says it: what a recipe can hold."""
OF_OTHERS = {"operands": ("data_in", "weight"), "bias": "8.mse"}
TORCH_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Kinds that a model runs on; other devices are those of circuits."""


@dataclass(frozen=True)
class SearchConfig(WorkloadConfig):
    """Trials, sampler and storage of a search.

    Attributes:
        trials: total number of configurations to measure, those of earlier runs included.
        sampler: algorithm that proposes configurations: sensitivity, tpe, nsga2, cmaes, gp, random
            or grid.
        pruner: early stopping of trials that are behind: asha, hyperband or median. Default: none.
        workers: processes of this machine that run trials.
        storage: `postgresql://user@host/db` for many machines, or a file. Default: a SQLite file in
            `out`.
        name: study name in the storage and of its folder in `out`. Default: the job's.
        keep: number of best models to keep on disk.
        seeds: number of searches, with seeds from `seed` on, compared in OUT/NAME-compared.
        samplers: samplers to compare, each a search (with each seed) of `trials` trials. Default:
            `sampler` alone.

    The other settings are those of `WorkloadConfig`.
    """

    JOB_NAME: ClassVar[str] = "search"
    RANGES: ClassVar[Ranges] = {
        "trials": (1, 10**9),
        "workers": (1, 1024),
        "keep": (0, 10_000),
        "seeds": (1, 100),
    }

    trials: int = 100
    sampler: str = "sensitivity"
    pruner: str | None = field(default=None, metadata=MORE)
    workers: int = 1
    storage: str | None = field(default=None, metadata=MORE)
    name: str | None = field(default=None, metadata=MORE)
    keep: int = field(default=1, metadata=MORE)
    seeds: int = field(default=1, metadata=MORE)
    samplers: tuple[str, ...] = field(default=(), metadata=MORE)

    @property
    def study(self) -> str:
        """The name of the study."""
        return self.name or self.JOB_NAME

    @property
    def folder(self) -> Path:
        """Where the study writes: several may share `out` and its storage."""
        return self.out / self.study

    def search(self, space: SearchSpace, measure: Measure, goals: Goals, **further: Any) -> Search:
        """The search of these settings; `further` are arguments of `chop.search.Search`."""
        from chop.search import Search

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
class FormatSettings:
    """Candidate number formats.

    Attributes:
        formats: formats by name (`integer`, `mxint`), each with its usual fields; `all` of them; or
            single ones: `4.auto`, `mxint:width=4`.
        widths: bit widths of the formats given by name: numbers by commas, or ranges
            `first:last:step`; formats of one width keep it. Default: usual for the job.
        ranges: values of further fields, by field. Example: `block_size=16,32`. Default: none.
        rule: calibration of fractions and exponent biases: mse (least squared error), minmax
            (nothing saturates) or percentile (one value in 1,000 saturates).
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight.
        operands: operands in the chosen format: data_in, weight, bias. Default: data_in and weight;
            of language models (causal-lm) weight.
        per: `layer` for one choice per layer, `operand` for one per operand of a layer.
        bias: format of biases. Default: 8.mse; of language models float.
        calibration_rows: training rows that calibrate scales.
        eval_batch_size: rows of an evaluation step. Default: chosen for speed.
    """

    RANGES: ClassVar[Ranges] = {"calibration_rows": (1, 10**9), "eval_batch_size": (1, 10**6)}
    USUAL_WIDTHS: ClassVar[str | None] = None

    formats: tuple[str, ...] = ("integer",)
    widths: str | int | tuple[int, ...] | None = None
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, metadata=MORE)
    rule: Literal["mse", "minmax", "percentile"] = field(default="mse", metadata=MORE)
    operators: tuple[str, ...] | None = field(default=None, metadata=MORE)
    operands: tuple[str, ...] | None = field(default=None, metadata=MORE)
    per: Literal["layer", "operand"] = field(default="layer", metadata=MORE)
    bias: str | None = field(default=None, metadata=MORE)
    calibration_rows: int = field(default=256, metadata=MORE)
    eval_batch_size: int | None = field(default=None, metadata=MORE)

    def read_formats(self) -> None:
        """Names the formats that `all` stands for.

        Raises:
            ConfigError: a setting is wrong; nothing is loaded yet.
        """
        from chop.formats import parse_format_string
        from chop.mixed_precision.candidates import every_format
        from chop.quantization.named_operators import check_operators

        if "all" in self.formats:
            if len(self.formats) > 1:
                raise ConfigError("formats: 'all' has every format; give it alone.")
            object.__setattr__(self, "formats", every_format())
        self.candidates()
        if self.bias is not None:
            parse_format_string(self.bias)
        if self.operators is not None:
            check_operators(self.operators)

    def all_ranges(self) -> dict[str, tuple[Any, ...]]:
        """Values by field, widths among them."""
        from chop.mixed_precision.candidates import fields_of

        widths = self.widths
        if widths is not None and "width" in self.ranges:
            raise ConfigError("widths and ranges.width are the same: give one of them.")
        if widths is None and any("width" in fields_of(given) for given in self.formats):
            widths = self.USUAL_WIDTHS
        usual = {} if widths is None else {"width": whole(parse_range(widths, "widths"), "widths")}
        return {**usual, **self.ranges}

    def problem(
        self,
        workload: Workload,
        rows: Rows,
        goal: Score | None = "metric",
        training: Mapping[str, Any] | None = None,
    ) -> PrecisionProblem:
        """The mixed-precision problem of a workload, measured on `rows`."""
        from chop.mixed_precision.problem import PrecisionProblem
        from chop.workloads.workload import raise_to_graph

        own = self._of_problem()
        usual = OF_LANGUAGE_MODELS if workload.task.name == "causal-lm" else OF_OTHERS
        mg, circuit = raise_to_graph(workload), self.circuit()
        if circuit is not None:  # a float bias has no circuit
            usual = {**usual, "bias": OF_OTHERS["bias"]}
        own |= {name: value for name, value in usual.items() if own[name] is None}
        if circuit is not None:
            from chop.passes import conv_bn_fusion_transform_pass

            mg, _ = conv_bn_fusion_transform_pass(mg)
        return PrecisionProblem(
            mg,
            workload.train,
            rows,
            ranges=self.all_ranges(),
            batch_size=self.eval_batch_size,
            goal=goal,
            task=workload.task,
            training=training,
            circuit=circuit,
            **own,
        )

    def circuit(self) -> CircuitSettings | None:
        """What a circuit is made for, whose costs are measured; None for no circuit."""
        return None

    def _of_problem(self) -> dict[str, Any]:
        """The settings that a problem takes as they are."""
        names = ("formats", "rule", "operators", "operands", "per", "bias", "calibration_rows")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """All of these settings that a result depends on, as plain JSON."""
        return {**self._of_problem(), "formats": list(self.candidates())}

    def candidates(self) -> dict[str, NumberFormat]:
        """The formats to choose from by format string, those of few bits first."""
        from chop.mixed_precision.candidates import format_candidates

        return format_candidates(self.formats, self.all_ranges(), self.rule)


@dataclass(frozen=True)
class SensitivityConfig(FormatSettings, WorkloadConfig):
    """Settings of `chop search sensitivity`.

    Attributes:
        metrics: per-layer metrics: kl, mse, weight_error, fisher, hessian, activation_variance.
        vectors: random vectors that estimate the Hessian's trace.

    The other settings are those of `FormatSettings` and `WorkloadConfig`.
    """

    RANGES: ClassVar[Ranges] = {"vectors": (1, 10_000)}

    out: Path = Path("runs/sensitivity")
    metrics: tuple[str, ...] = (
        *("kl", "mse", "weight_error", "fisher", "hessian", "activation_variance"),
    )
    vectors: int = field(default=16, metadata=MORE)

    def __post_init__(self) -> None:
        from chop.mixed_precision.layer_sensitivity import check_metrics

        super().__post_init__()
        self.read_formats()
        check_metrics(self.metrics)


@dataclass(frozen=True)
class PrecisionConfig(FormatSettings, SearchConfig):
    """Settings of `chop search precision`.

    Attributes:
        goals: objectives: accuracy (or the metric of another task), loss, kl, bits,
            activation_bits, bytes, bit_operations; of the model's circuit lut, ff, dsp, bram,
            interval (cycles), latency_us; several give a Pareto front. kl, the divergence
            from the float model's outputs, still ranks formats where accuracy is saturated; it
            needs classes, so take loss for other outputs.
        per: `operand` for one choice per operand of a layer, `layer` for one per layer.
        budgets: constraints: the largest value of each cost, the least accuracy. Example: `bits=4`.
            Default: bits=4 for one objective that is no cost, where a format has fewer bits; none
            with `per_format`.
        per_format: a search for each of `formats`, compared in OUT/NAME-compared; fields that a
            format lacks are left out of its `ranges`.
        warm_start: begin with what needs no search: one option everywhere, and the least predicted
            loss; else the table has neither. Default: yes, but not with `per_format`.
        search_rows: validation rows that trials are measured on, at most; training rows if there
            are fewer than 100 validation rows and nothing is trained.
        epochs: epochs of QAT in each trial, from the same weights; 0 measures PTQ.
        lr: peak learning rate of QAT. Default: by model and number of epochs.
        device: torch device, or with a goal or budget of a circuit the device whose lookup tables,
            multipliers and memories are counted and are budgets: ice40-hx8k, ecp5-25, ecp5-45,
            xc7a100t, ecp5-85, or what there is, as in lut=20000,dsp=0,bram=50, whose products are
            made of lookup tables. Default: a GPU if there is one, else the CPU; resources of
            7-series.
        folds: most cycles of a component of the circuit for a sample: several are a choice of the
            search. Default: about 256 multipliers, or fewer that the device holds; with a goal
            or budget interval or latency_us a quarter to four times as many cycles, too.
        clock_mhz: the clock that latency_us is told at: no estimate tells it.
        others: format of the operators that the search is not about, where there is a circuit.
        emit: emits and verifies the circuit of the best, in OUT/NAME/circuit.
        place: places and routes it as well, on the device.

    The other settings are those of `FormatSettings` and `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "precision"
    RANGES: ClassVar[Ranges] = {
        "search_rows": (1, 10**9),
        "epochs": (0, 10_000),
        "lr": (1e-12, 1e3),
        "clock_mhz": (1e-3, 1e5),
    }

    USUAL_WIDTHS: ClassVar[str | None] = "2:8:1"
    OF_CIRCUITS: ClassVar[tuple[str, ...]] = ("folds", "clock_mhz", "others", "emit", "place")

    out: Path = Path("runs/search")
    goals: tuple[str, ...] = ("kl",)
    per: Literal["layer", "operand"] = field(default="operand", metadata=MORE)
    budgets: Mapping[str, float] | None = None
    per_format: bool = field(default=False, metadata=MORE)
    warm_start: bool | None = field(default=None, metadata=MORE)
    search_rows: int = field(default=2000, metadata=MORE)
    epochs: int = 0
    lr: float | None = field(default=None, metadata=MORE)
    device: str | None = None
    folds: tuple[int, ...] = field(default=(), metadata=MORE)
    clock_mhz: float = field(default=100.0, metadata=MORE)
    others: str = field(default="8.auto", metadata=MORE)
    emit: bool = False
    place: bool = False

    def __post_init__(self) -> None:
        from chop.mixed_precision.costs import COSTS
        from chop.search.objective import objectives_of

        super().__post_init__()
        self.read_formats()
        objectives_of(self.all_goals())
        self._check_circuit()
        if self.pruner is not None and self.goals[0] in COSTS:
            raise ConfigError(
                f"pruner: '{self.goals[0]}' is known before a trial runs: there is nothing to stop."
            )
        if self.lr is not None and not self.epochs:
            raise ConfigError(f"lr: got {self.lr:g}, but trials are trained with epochs alone.")

    def _check_circuit(self) -> None:
        """Raises ConfigError where settings of a circuit are wrong, or are about none."""
        from chop.formats import parse_format_string
        from chop.hardware.devices import parse_device

        defaults = {each.name: each.default for each in fields(self)}
        given = [name for name in self.OF_CIRCUITS if getattr(self, name) != defaults[name]]
        given = ["device"] * (self.torch_device != self.device) + given
        if given and not self.circuit_goals():
            raise ConfigError(
                f"{given[0]}: nothing is asked of a circuit; name a goal or budget of one: lut, "
                "ff, dsp, bram, interval or latency_us."
            )
        if any(fold < 1 for fold in self.folds):
            raise ConfigError(f"folds: got {min(self.folds)}, expected 1 or more cycles.")
        if self.place and not self.emit:
            raise ConfigError("place: what is placed is the circuit that emit writes; add emit.")
        if self.emit and self.epochs:
            raise ConfigError("emit: a circuit of weights that trials train is not emitted.")
        circuit, kind = self.circuit(), (self.torch_device or "cpu").partition(":")[0]
        if circuit is not None and kind not in TORCH_DEVICES:
            parse_device(kind)
        router = circuit and circuit.device and circuit.device.router
        if self.place and router is None:
            raise ConfigError(
                f"place: no tool places on '{self.device or 'no device'}': name a device as "
                "--device ecp5-85."
            )
        parse_format_string(self.others)

    def circuit_goals(self) -> list[str]:
        """Goals and budgets that are numbers of a circuit."""
        from chop.mixed_precision.costs import COSTS

        names = dict.fromkeys((*self.goals, *(self.budgets or ())))
        return [name for name in names if name in COSTS and COSTS[name].is_of_circuit]

    def circuit_columns(self) -> list[tuple[str, int]]:
        """Numbers of a circuit that tables have, and places of their fractions."""
        from chop.mixed_precision.costs import COSTS

        names = [name for name, cost in COSTS.items() if cost.is_of_circuit]
        return [(name, 2 * (name == "latency_us")) for name in names if self.circuit_goals()]

    def circuit(self) -> CircuitSettings | None:
        """What a circuit is made for; None where no goal or budget is about one."""
        goals = self.circuit_goals()
        if not goals:
            return None
        from chop.hardware.devices import parse_device
        from chop.mixed_precision.circuit import CircuitSettings

        device = parse_device(self.device) if self.device and not self.torch_device else None
        varies = bool({"interval", "latency_us"} & set(goals))
        return CircuitSettings(self.folds, device, self.clock_mhz, self.others, varies)

    def identity(self) -> dict[str, Any]:
        """All of the settings that a result depends on, as plain JSON."""
        circuit = self.circuit()
        if circuit is None:
            return super().identity()
        from chop.hardware.estimate import estimates_id

        device = circuit.device and circuit.device.name
        own = {name: getattr(self, name) for name in ("clock_mhz", "others")}
        own |= {"device": device, "folds": list(self.folds), "estimates": estimates_id()}
        return super().identity() | own

    @property
    def torch_device(self) -> str | None:
        """Where the model runs."""
        from chop.hardware.devices import DEVICES

        is_circuit = self.device in DEVICES or "=" in (self.device or "")
        return None if is_circuit else self.device

    @property
    def begins_warm(self) -> bool:
        """Whether the first trials are those that need no search."""
        return not self.per_format if self.warm_start is None else self.warm_start

    def all_goals(self) -> tuple[Goal | Constraint, ...]:
        """Objectives, then constraints."""
        from chop.mixed_precision.costs import COSTS
        from chop.mixed_precision.goals import precision_goals

        budgets = self.budgets
        if budgets is None:
            is_one_score = len(self.goals) == 1 and self.goals[0] not in COSTS
            narrowest = min(fmt.bits() for fmt in self.candidates().values())
            has_usual = is_one_score and not self.per_format and narrowest < USUAL_BITS
            budgets = {"bits": USUAL_BITS} if has_usual else {}
        return precision_goals(self.goals, {**self._of_device(), **budgets})

    def _of_device(self) -> dict[str, float]:
        """Budgets that the device of a circuit sets: what it has of each resource."""
        from chop.hardware.devices import RESOURCES

        circuit = self.circuit()
        if circuit is None or circuit.device is None:
            return {}
        has = {name: getattr(circuit.device, name) for name in RESOURCES}
        return {name: count for name, count in has.items() if count and name not in self.goals}


@dataclass(frozen=True)
class NasConfig(SearchConfig):
    """Settings of `chop search nas`.

    Attributes:
        fields: values of each field of the model's configuration, by field. Example:
            `hidden_size=32,64`. Default: half, once and twice the number of layers and of heads,
            hidden size and intermediate size.
        square_layers: candidates for each linear layer of as many inputs as outputs; the first is
            the default.
        goals: objectives: accuracy, parameters, size_bytes; several give a Pareto front.
        budgets: constraints: the largest parameters or size_bytes, the least accuracy. Example:
            `parameters=20000`. Default: none.
        epochs: epochs of training in each trial.
        lr: peak learning rate of each trial.
        validation: share of the training rows that trials are evaluated on; test rows are for the
            best alone.
        compression: evaluate models as they are, compressed, or compressed and trained again.
        pass_args: settings of the compression passes, by pass. Example:
            'prune_transform_pass = {"weight": {"sparsity": 0.3}}'. Default: 4-bit integers and 50 %
            sparsity.
        compression_epochs: epochs of training after compression, for `compress-train`.
        proxy: zero-cost score that filters architectures before training: synflow, naswot, snip,
            grad-norm, zen, jacobian-covariance, parameters. Default: none.
        share: share of architectures that pass the proxy.

    The other settings are those of `SearchConfig`.
    """

    JOB_NAME: ClassVar[str] = "nas"
    RANGES: ClassVar[Ranges] = {
        "epochs": (1, 10_000),
        "lr": (1e-9, 10),
        "validation": (0.01, 0.9),
        "compression_epochs": (0, 10_000),
        "share": (0.001, 1),
    }

    out: Path = Path("runs/search")
    trials: int = 40
    fields: Mapping[str, tuple[Any, ...]] | None = None
    square_layers: tuple[str, ...] = field(default=("Linear", "Identity"), metadata=MORE)
    goals: tuple[str, ...] = ("accuracy",)
    budgets: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 5
    lr: float = field(default=3e-3, metadata=MORE)
    validation: float = field(default=0.2, metadata=MORE)
    compression: Literal["none", "compress", "compress-train"] = "none"
    pass_args: Mapping[str, Any] | None = field(default=None, metadata=MORE)
    compression_epochs: int = field(default=2, metadata=MORE)
    proxy: str | None = None
    share: float = field(default=0.25, metadata=MORE)

    def __post_init__(self) -> None:
        from chop.nas.architecture import SQUARE_LAYERS
        from chop.nas.proxies import PROXIES

        super().__post_init__()
        for where, names, known in (
            ("square_layers", self.square_layers, SQUARE_LAYERS),
            ("proxy", (self.proxy,) if self.proxy else (), PROXIES),
        ):
            for name in names:
                check_known(name, known, f"{where}: unknown")
        self.all_goals()
        self.how_compressed()

    def how_compressed(self) -> Compression:
        """What is done to a trained model."""
        from chop.nas.compression import PASS_ARGS, Compression

        pass_args = PASS_ARGS if self.pass_args is None else self.pass_args
        return Compression(self.compression, pass_args, self.compression_epochs)

    def all_goals(self) -> tuple[Goal | Constraint, ...]:
        """Objectives, then constraints."""
        from chop.nas.goals import nas_goals

        return nas_goals(self.goals, self.budgets)
