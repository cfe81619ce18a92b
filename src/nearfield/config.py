"""A run, and a comparison of runs, as typed, frozen values: read from TOML, overridden with `a.b=value`, hashed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearfield.errors import InputError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Value = float | int | bool | str


class Config(BaseModel):
    """Base of all configuration values: frozen, and closed to unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    def digest(self) -> str:
        """A short hash of the resolved value, the same on every machine."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        """The resolved value as TOML; keys that are None are left out, as TOML has no null."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class DataConfig(Config):
    """Which data, how its images are prepared, and which of its training classes are held out to choose the epoch.

    With one fold a share of them, drawn by `split_seed`; with several, the classes of fold number `fold`, consecutive
    as in the reality check. `augment` is one of `nearfield.data.augment`: images are cropped at random for
    training, and centrally for testing.
    """

    name: str = "glyphs"
    val_fraction: Fraction = 0.2
    split_seed: int = 0
    folds: Count = 1
    fold: Annotated[int, Field(ge=0)] = 0
    augment: str | None = None
    workers: Annotated[int, Field(ge=0)] = 0  # processes that prepare batches; the batches do not depend on them

    @model_validator(mode="after")
    def _fold_exists(self) -> DataConfig:
        if self.fold >= self.folds:
            raise ValueError(f"fold counts from 0 to folds - 1, {self.folds - 1}; got {self.fold}")
        return self


BACKBONES = ("conv", "features", "bn_inception", "googlenet", "efficientnet_lite0")


def _known_backbone(name: str) -> str:
    if name not in BACKBONES and not name.startswith("timm:"):
        raise ValueError(f"a backbone is one of {', '.join(BACKBONES)} or timm:NAME; {nearest(name, BACKBONES)}")
    return name


class ModelConfig(Config):
    """The network: a backbone, pooling over space, and a head that gives the embedding.

    `width` and `channels` shape the small convolutional backbone alone. `weights` is a local file for the backbone;
    efficientnet_lite0 brings its own. Head "none" leaves the pooled features, so that `dim` is their number. Frozen
    batch norm keeps its running statistics in training; `freeze_bn_affine` keeps its scale and shift too.
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


class SamplerConfig(Config):
    """How batches are drawn: `per_class` images of each of batch_size / per_class classes, or a plain shuffle.

    "auto" is what the method was published with.
    """

    name: Literal["auto", "m_per_class", "npairs", "episodic", "fastap", "fastap_hard", "shuffle"] = "auto"
    batch_size: Annotated[int, Field(ge=2)] = 128
    per_class: Count = 4


class OptimizerConfig(Config):
    """The optimiser and its rates: of the network, of its head, of what the loss learns (proxies, margins)."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    lr: Positive = 2e-3
    head: Positive = 1.0  # times lr
    loss_lr: Positive = 0.01
    weight_decay: AtLeastZero = 1e-4
    loss_weight_decay: AtLeastZero = 0.0
    eps: Positive = 1e-8
    loss_eps: Positive = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd and rmsprop
    decay_biases: bool = True  # False: no weight decay on biases and norms
    clip: Positive | None = None  # largest norm of the network's gradient
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    decay_every: Count | None = None  # steps after which "step" multiplies the rates by `decay`
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    frozen_steps: Annotated[int, Field(ge=0)] = 0  # first steps, in which the backbone is held and the rest learns

    @model_validator(mode="after")
    def _step_is_known(self) -> OptimizerConfig:
        if self.schedule == "step" and self.decay_every is None:
            raise ValueError('schedule "step" needs decay_every, the steps between two drops of the rates')
        return self


class MethodConfig(Config):
    """A method by name, with parameters that differ from its defaults."""

    name: str = "multi_similarity"
    params: dict[str, Value | dict[str, Value]] = {}


class RunConfig(Config):
    """One training run: everything that its result depends on."""

    method: MethodConfig = MethodConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sampler: SamplerConfig = SamplerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    memory: Count | None = None  # earlier embeddings that pair losses compare with too (cross-batch memory)
    chunk: Count | None = None  # images embedded at once; None: the whole batch. The gradient is the same
    precision: Literal["float32", "bf16", "fp16"] = "float32"  # of the network, by autocast; losses reduce in float32
    ema: Fraction | None = None  # decay of an average of the weights, which is then what is scored
    steps: Count = 500
    eval_every: Count = 100
    oracle: bool = False  # write down test scores along the way too; nothing is chosen by them
    select_by: Literal["map@r", "recall@1", "r_precision"] = "map@r"
    distance: Literal["cosine", "euclidean", "hamming"] = "cosine"  # hamming: of the signs of the embedding
    member: Annotated[int, Field(ge=0)] | None = None  # of an ensemble; None trains all and joins them
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Count = 1


VARIANTS = ("untuned", "dim64", "dim512", "plain")


class BenchConfig(Config):
    """A comparison: methods x seeds under one protocol, everything else equal.

    Every method is tuned with the same number of `trials`; the first is its published setting. `variants` are run
    besides, for the bias ledger: the published setting, other embedding sizes, without the method's own tricks.
    """

    protocol: str = "classic"
    trials: Count = 1
    prune: bool = True  # stop a trial whose first folds are far behind; the rule is the same for every method
    variants: tuple[Literal["untuned", "dim64", "dim512", "plain"], ...] = ()
    variant_seeds: Count = 1
    methods: Annotated[tuple[MethodConfig, ...], Field(min_length=1)] = (
        MethodConfig(name="multi_similarity"),
        MethodConfig(name="fastap"),
        MethodConfig(name="proxy_softmax", params={"temperature": 0.1}),
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1)
    run: RunConfig = RunConfig()

    def runs(self) -> list[RunConfig]:
        """Every run of the comparison, seed by seed, so that an unfinished table is already fair."""
        return [self.run.model_copy(update={"method": m, "seed": s}) for s in self.seeds for m in self.methods]


C = TypeVar("C", bound=Config)


def load_config(kind: type[C], path: Path | None = None, overrides: Iterable[str] = ()) -> C:
    """Read `kind` from a TOML file (or its defaults), apply `a.b=value` overrides, and validate."""
    return build_config(kind, merge(read_toml(path) if path else {}, overrides))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; InputError if there is none or it does not parse."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return found
    except OSError as error:
        raise InputError(f"cannot read the config {path}: {error.strerror}. Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def merge(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`values` with each override `a.b=value` applied; the value is read as TOML, or as text if it is not."""
    merged: dict[str, Any] = json.loads(json.dumps(values))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set takes a.b=value; got {override!r}.")
        *tables, last = key.strip().split(".")
        at = merged
        for table in tables:
            at = at.setdefault(table, {})
            if not isinstance(at, dict):
                raise InputError(f"--set {override}: {table!r} is a value, not a table.")
        at[last] = _parse(text.strip())
    return merged


def build_config(kind: type[C], values: Mapping[str, Any]) -> C:
    """Validate `values` as `kind`; InputError names every offending key, the rule and the nearest valid key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_explain(kind, problem) for problem in error.errors()]
        raise InputError("\n".join(["the configuration is not valid:", *(f"  {p}" for p in problems)])) from None


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(kind: type[Config], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        valid = _keys_at(kind, problem["loc"][:-1])
        return f"{where} is not a key here; {nearest(str(problem['loc'][-1]), valid)}"
    return f"{where}: {problem['msg']}; got {problem['input']!r}."


def _keys_at(kind: type[Config], location: tuple[Any, ...]) -> list[str]:
    """The valid keys of the table at `location` inside `kind`."""
    for part in location:
        if isinstance(part, str) and part in kind.model_fields:
            kind = _config_inside(kind.model_fields[part].annotation) or kind
    return list(kind.model_fields)


def _config_inside(annotation: Any) -> type[Config] | None:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation
    return next((found for part in get_args(annotation) if (found := _config_inside(part))), None)
