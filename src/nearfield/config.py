"""Configurations of a run and of a bench: typed, immutable values, read from TOML, overridden by `a.b=value`, hashed.

Unknown keys are errors, and so are values out of range: an InputError names the key, the rule and the value. Every
number must be finite.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import sys
from collections.abc import Iterable, Mapping
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nearfield.errors import InputError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 2**63 - 1  # what TOML promises to hold

Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Value = float | Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | bool | str


def _one_rule(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """One message for a value of none of the allowed types, not one for each type."""
    try:
        return validate(value)
    except ValidationError:
        rule = "must be a finite number, true, false, text, or a list or a table of those"
        raise PydanticCustomError("parameter", rule) from None


Table = dict[str, Value | list[Value] | dict[str, Value | list[Value]]]  # a base's parameters may hold its own base's
Parameter = Annotated[Value | list[Value] | Table, WrapValidator(_one_rule)]


LATER = Field(json_schema_extra={"added_later": True})  # of a key: see `Config.digest`


class Config(BaseModel):
    """Base of all configurations: immutable, without unknown keys, all numbers finite."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def digest(self) -> str:
        """A short hash of all values, defaults included; the same on every machine.

        Keys that a later version added count only where they differ from their default: an old run keeps its digest.
        """
        text = json.dumps(_without_later(self, self.model_dump(mode="json")), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        """All values as TOML, defaults included; keys that are None are omitted, as TOML has no null."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def _without_later(config: Config, values: dict[str, Any]) -> dict[str, Any]:
    """The dumped `values` of a configuration without keys added later that have their default."""
    kept = {}
    for name, value in values.items():
        field, own = type(config).model_fields[name], getattr(config, name)
        if field.json_schema_extra == LATER.json_schema_extra and own == field.get_default():
            continue
        kept[name] = _without_later(own, value) if isinstance(own, Config) else value
    return kept


class DataConfig(Config):
    """The dataset, how its images are prepared, and which training classes are held out for validation.

    `name` is the name of a dataset (`nearfield data list`) or the path of one. With `folds` = 1, `val_fraction` of the
    training classes, drawn by `split_seed`, are held out; with several folds, the classes of fold number `fold`, which
    are consecutive as in the reality check (Musgrave et al., 2020). `augment` is the name of an augmentation in
    `nearfield.data.augment`: random crops for training, centre crops for testing. None leaves images as they are; image
    files are then resized to 256 x 256 or, with a `size`, by their shorter side, of which the centre is kept.
    """

    name: str = "glyphs"
    val_fraction: Fraction = 0.2
    split_seed: NotNegative = 0
    folds: Count = 1
    fold: NotNegative = 0
    augment: str | None = None
    workers: NotNegative = 0  # processes that prepare batches; the batches do not depend on their number
    size: Annotated[Count | None, LATER] = None  # side of image files that are not augmented

    @model_validator(mode="after")
    def _one_way_to_crop(self) -> DataConfig:
        if self.size is not None and self.augment is not None:
            raise ValueError(f"size must be left out with augment, which has a size of its own; got {self.size}")
        return self

    @model_validator(mode="after")
    def _fold_exists(self) -> DataConfig:
        if self.fold >= self.folds:
            raise ValueError(f"fold must be in 0..{self.folds - 1}, below folds; got {self.fold}")
        return self


BACKBONES = ("conv", "features", "bn_inception", "googlenet", "efficientnet_lite0")


def _known_backbone(name: str) -> str:
    if name not in BACKBONES and not name.startswith("timm:"):
        raise ValueError(
            f"must be one of {', '.join(BACKBONES)} or timm:NAME; got {name!r}, {nearest(name, BACKBONES)}"
        )
    return name


class ModelConfig(Config):
    """The network: a backbone, spatial pooling, and a head that outputs the embedding.

    `width` and `channels` apply to the backbone "conv" only. `weights` is a local file of backbone weights;
    efficientnet_lite0 needs none, its package brings them. With head "none" the pooled features are the embedding, and
    `dim` must be their number. `freeze_bn` keeps the running statistics of batch norm during training;
    `freeze_bn_affine` keeps its scale and shift too. The first `frozen_stages` stages of the backbone never train:
    neither weights nor statistics change, and where images are not augmented their activations are computed once for
    all runs. Stages are the convolutions of "conv"; those of EfficientNet's paper, the first one with the stem.
    """

    backbone: Annotated[str, AfterValidator(_known_backbone)] = "conv"
    width: Count = 16
    channels: Literal[1, 3] = 1
    weights: str | None = None
    pool: Literal["avg", "max", "avg_max"] = "avg"
    norm: Literal["none", "layer", "layer_affine"] = "none"
    head: Literal["linear", "none"] = "linear"
    init: Literal["default", "kaiming", "xavier", "xavier_small", "pca"] = "default"
    dim: Count = 64
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    freeze_bn: bool = False
    freeze_bn_affine: bool = False
    frozen_stages: Annotated[NotNegative, LATER] = 0


BatchRule = Literal["distinct", "chunks", "replacement", "images_with_replacement", "cover"]


class SamplerConfig(Config):
    """How batches are sampled: `per_class` images of each of `batch_size` / `per_class` classes, or a plain shuffle.

    "auto" is the sampler that the method was published with. The other keys belong to some samplers and are explained
    there: `rule` to m_per_class, `p_same` to npairs, `support` to episodic, `repeats` and `unlabelled` (the name of the
    category that means "no category") to fastap_hard, `keep_class_whole` to fastap and fastap_hard. A key that the
    sampler does not have is an error.
    """

    name: Literal["auto", "m_per_class", "npairs", "episodic", "fastap", "fastap_hard", "shuffle"] = "auto"
    batch_size: Annotated[int, Field(ge=2)] = 128
    per_class: Count = 4
    rule: Annotated[BatchRule | None, LATER] = None
    p_same: Annotated[Annotated[float, Field(ge=0, le=1)] | None, LATER] = None
    support: Annotated[Count | None, LATER] = None
    repeats: Annotated[Count | None, LATER] = None
    unlabelled: Annotated[str | None, LATER] = None
    keep_class_whole: Annotated[bool | None, LATER] = None

    def options(self) -> dict[str, Any]:
        """The keys that belong to some samplers and are set here."""
        own = ("rule", "p_same", "support", "repeats", "unlabelled", "keep_class_whole")
        return {name: getattr(self, name) for name in own if getattr(self, name) is not None}


class OptimizerConfig(Config):
    """The optimizer and its learning rates: of the network, of its head, and of the loss (proxies, margins)."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    lr: Positive = 2e-3
    head: Positive = 1.0  # learning rate of the head, as a multiple of lr
    loss_lr: Positive = 0.01  # learning rate of the parameters of the loss
    weight_decay: AtLeastZero = 1e-4
    loss_weight_decay: AtLeastZero = 0.0
    eps: Positive = 1e-8
    loss_eps: Positive = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd and rmsprop only
    decay_biases: bool = True  # False: no weight decay of biases and normalization layers
    clip: Positive | None = None  # maximum norm of a gradient; None: no clipping
    # what is clipped: the network's gradient as a whole, or those of the backbone, of the head and of the loss, each
    clip_by: Annotated[Literal["network", "part"], LATER] = "network"
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    decay_every: Count | None = None  # schedule "step" multiplies the rates by `decay` after each so many steps
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup_steps: NotNegative = 20
    frozen_steps: NotNegative = 0  # number of initial steps during which the backbone is frozen

    @model_validator(mode="after")
    def _step_has_an_interval(self) -> OptimizerConfig:
        if self.schedule == "step" and self.decay_every is None:
            raise ValueError('schedule "step" needs decay_every, the number of steps between two decays')
        return self


class MethodConfig(Config):
    """A method by name (`nearfield methods`), and the parameters that differ from its defaults."""

    name: str = "multi_similarity"
    params: dict[str, Parameter] = {}


TestMetric = Literal["recall", "precision", "r_precision", "map_at_r", "map", "mrr", "nmi", "ami", "f1"]
COMPARED_BY = ("recall", "r_precision", "map_at_r")  # what every test measures


class RunConfig(Config):
    """One training run: everything that its result depends on, except the content of the data."""

    method: MethodConfig = MethodConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sampler: SamplerConfig = SamplerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    proxy_start: Annotated[Literal["random", "class_means"], LATER] = "random"  # class_means: mean embeddings
    memory: Count | None = None  # size of the cross-batch memory of a pair loss; None: no memory
    chunk: Count | None = None  # images embedded at a time; None: the whole batch. The gradient does not depend on it
    # batches (or episodes) of an update, whose gradients are averaged; a step is an update
    accumulate: Annotated[Count, LATER] = 1
    precision: Literal["float32", "bf16", "fp16"] = (
        "float32"  # of the network (autocast); losses are computed in float32
    )
    ema: Fraction | None = None  # decay of the exponential moving average of the weights, which is then evaluated
    steps: Count = 500
    eval_every: Count = 100
    oracle: bool = False  # record test scores during training too; nothing is selected by them
    select_by: Literal["map@r", "recall@1", "r_precision"] = "map@r"
    # of the ranking; hamming: between the signs of the embeddings. A method with a distance of its own has that instead
    # of cosine
    distance: Literal["cosine", "euclidean", "hamming", "hyperbolic"] = "cosine"
    ks: Annotated[tuple[Count, ...] | None, LATER] = None  # of recall@K; None: those of the data's papers
    shard_proxies: Annotated[bool, LATER] = False  # under torchrun, split the loss's proxies over the processes
    metrics: Annotated[tuple[TestMetric, ...] | None, LATER] = (
        None  # of the test; None: recall, r_precision, map_at_r, nmi
    )
    member: NotNegative | None = None  # train only this member of an ensemble; None: all, concatenated
    seed: NotNegative = 0
    threads: Count = 1

    @model_validator(mode="after")
    def _measures_what_is_compared(self) -> RunConfig:
        if self.metrics is not None and not {*COMPARED_BY} <= {*self.metrics}:
            raise ValueError(f"metrics must include {', '.join(COMPARED_BY)}; got {', '.join(self.metrics) or 'none'}")
        return self


class BenchConfig(Config):
    """A comparison of methods: each with every seed, under one protocol, everything else equal.

    Every method is tuned with the same number of `trials`, or with `many_trials` if it has three or more parameters to
    search, where that is given; the first is its published setting. A trial makes `trial_steps`, the schedule of its
    rates scaled, if the search is to cost less than the runs; by default as many steps as they. `variants` are extra
    runs with the first `variant_seeds` seeds: for the bias ledger the published setting, other embedding sizes, the
    method without its own tricks; "longer" makes twice the steps, to see whether the budget was enough. With
    `published` every method has its own published optimiser and sampler: then conditions are not equal.
    """

    protocol: str = "classic"
    trials: Count = 1
    many_trials: Annotated[Count | None, LATER] = None
    trial_steps: Annotated[Count | None, LATER] = None
    prune: bool = True  # stop a trial that is far behind after its first folds; the same rule for every method
    variants: tuple[Literal["untuned", "dim64", "dim512", "plain", "longer"], ...] = ()
    variant_seeds: Count = 1
    methods: Annotated[tuple[MethodConfig, ...], Field(min_length=1)] = (
        MethodConfig(name="multi_similarity"),
        MethodConfig(name="fastap"),
        MethodConfig(name="proxy_softmax"),
    )
    seeds: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0, 1)
    published: Annotated[bool, LATER] = False
    run: RunConfig = RunConfig()

    def runs(self) -> list[RunConfig]:
        """Every run of the comparison, seed by seed, so that an unfinished bench is already fair."""
        return [self.run.model_copy(update={"method": m, "seed": s}) for s in self.seeds for m in self.methods]


C = TypeVar("C", bound=Config)


def load_config(kind: type[C], path: Path | None = None, overrides: Iterable[str] = ()) -> C:
    """Read a TOML file (or take the defaults), apply the overrides `a.b=value`, and validate; InputError if invalid."""
    return build_config(kind, merge(read_toml(path) if path else {}, overrides))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, with or without a byte-order mark; InputError if it cannot be read or parsed."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path))
    except OSError as error:
        raise InputError(f"cannot read the config {path}: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def parse_toml(text: str, name: str = "the configuration") -> dict[str, Any]:
    """The tables of TOML text that comes from `name`; InputError if it is not valid."""
    try:
        found: dict[str, Any] = tomllib.loads(text)
        return found
    except ValueError as error:  # of TOML, or of a number with thousands of digits
        raise InputError(f"{name} is not valid TOML: {error}.") from error
    except RecursionError:
        raise InputError(f"{name} is not valid TOML: its arrays or tables are nested too deeply.") from None


def merge(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of `values` with each override `a.b=value` applied; what is not a TOML value is taken as text."""
    merged = dict(values)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set must be KEY=VALUE, for example optimizer.lr=0.001; got {override!r}.")
        *tables, last = key.strip().split(".")
        at = merged
        for table in tables:
            inner = at.get(table, {})
            if not isinstance(inner, dict):
                raise InputError(f"cannot set {key.strip()}: {table} is a value, not a table; got {_brief(inner)}.")
            at[table] = dict(inner)
            at = at[table]
        at[last] = _parse(override, text.strip())
    return merged


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, under dotted keys such as optimizer.lr."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def differences(there: Config, here: Config) -> list[str]:
    """Every key in which two configurations differ, with both values: `seed: 0 there, 1 here`."""
    a, b = (leaves(each.model_dump(mode="json")) for each in (there, here))
    keys = [key for key in {**a, **b} if repr(a.get(key)) != repr(b.get(key))]  # 1 and 1.0 have different digests
    return [f"{key}: {_shown(a.get(key))} there, {_shown(b.get(key))} here" for key in keys]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def build_config(kind: type[C], values: Mapping[str, Any]) -> C:
    """Validate `values` as `kind`; InputError names each invalid key, the rule, the value and the nearest key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_explain(kind, problem) for problem in error.errors()]
        raise InputError("\n".join(["the configuration is not valid:", *(f"  {p}" for p in problems)])) from None


def _parse(override: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    if len(parsed) > 1:
        raise InputError(f"--set takes one value; got several lines of TOML: {override!r}. Repeat --set for each key.")
    value = parsed["value"]
    return text if isinstance(value, date | time) else value  # no key is a date, but a name may look like one


RULES = {  # pydantic's words for what TOML calls otherwise
    "missing": "is required",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "string_type": "must be text, in quotes",
}


def _explain(kind: type[Config], problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return _unknown_key(kind, problem["loc"], problem["input"])
    rule = RULES.get(problem["type"], problem["msg"].replace("Input should", "must", 1))
    got = f"; got {_brief(problem['input'])}."
    if problem["type"] == "value_error":  # from a validator, which names the value itself
        rule = rule.removeprefix("Value error, ")
        got = "" if rule.endswith("?") else "."
    space = " " if rule.startswith(("must", "is ")) else ": " if where else ""
    return f"{where}{space}{rule}{got}"


def _unknown_key(kind: type[Config], location: tuple[Any, ...], value: Any) -> str:
    """Name an unknown key, and the key that was meant: of that name elsewhere, or else the nearest here."""
    path = [str(part) for part in location]
    while isinstance(value, dict) and value:  # an unknown table: its first key tells what was meant
        name, value = next(iter(value.items()))
        path.append(name)
    key, last = ".".join(path), str(location[-1])
    homes = [known for known in _keys(kind) if known.rpartition(".")[2] in (path[-1], last)]
    if not homes:
        return f"{'.'.join(map(str, location))} is not a key here; {nearest(last, _keys_at(kind, location[:-1]))}"
    meant = repr(homes[0]) if len(homes) == 1 else f"one of {', '.join(homes)}"
    text = f"{key} is not a key here; did you mean {meant}?"
    for name, other in (("run", RunConfig), ("bench", BenchConfig)):
        if other is not kind and key in _keys(other):
            text += f" {key} is a key of a {name}."
    return text


def _keys(kind: type[Config], prefix: str = "") -> list[str]:
    """The dotted key of every value in `kind`."""
    found = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if _is_config(inner):
            found += _keys(inner, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def _keys_at(kind: type[Config], location: tuple[Any, ...]) -> list[str]:
    """The valid keys of the table at `location` inside `kind`."""
    for part in location:
        if isinstance(part, str) and part in kind.model_fields:
            kind = _config_inside(kind.model_fields[part].annotation) or kind
    return list(kind.model_fields)


def _is_config(annotation: Any) -> TypeGuard[type[Config]]:
    """Whether it is a table of the configuration; Python 3.10 calls `tuple[int, ...]` a type, too."""
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Config)


def _config_inside(annotation: Any) -> type[Config] | None:
    if _is_config(annotation):
        return annotation
    return next((found for part in get_args(annotation) if (found := _config_inside(part))), None)


def _brief(value: Any) -> str:
    """A value in an error message: shortened, however long, deep or large it is."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxlong, short.maxother = 3, 100, 40, 100
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number too long to print"
