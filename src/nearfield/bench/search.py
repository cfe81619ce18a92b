"""What a search may vary, and what it tries next: a function of the results so far, and of nothing else.

Settings are dotted keys of a run's configuration, such as `method.params.beta` and `optimizer.lr`, with their values.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, log
from statistics import fmean
from typing import Any

from nearfield.config import RunConfig, build_config
from nearfield.losses.registry import Choice, Method, Range, Real, Whole, method

STARTUP = 4  # first trials, which depend on no result: the published setting and random ones
FACTOR = 30.0  # the network's rate is searched from the bench's own divided by this to the same times this
LOSS_FACTOR = 100.0  # the same for the rate of what a loss learns: good ones for proxies differ more
PER_CLASS = (4, 8)  # images of a class in a batch that pair losses may choose, beside the bench's own
Space = Mapping[str, Range]
Setting = dict[str, Any]


@dataclass(frozen=True)
class Tried:
    """One finished trial, as the search sees it."""

    setting: tuple[tuple[str, Any], ...]
    folds: tuple[float, ...]  # best validation score of every fold that was trained
    complete: bool


def space_of(run: RunConfig) -> Space:
    """The space that the method of `run` and its base declare, without what `run` sets, its learning rates, and what
    every method of its kind may choose: where its proxies start, how many images of a class a batch holds."""
    from nearfield.training.build import MOST_CLASSES, loss_params

    found = method(run.method.name)
    searched = found.searched(run.method.params)
    space: dict[str, Range] = {f"method.params.{key}": each for key, (each, _) in searched.items()}
    space["optimizer.lr"] = _around(run.optimizer.lr, FACTOR)
    if found.learned_numbers(loss_params(run, MOST_CLASSES)):
        space["optimizer.loss_lr"] = _around(run.optimizer.loss_lr, LOSS_FACTOR)
    if found.has_proxies:
        space["proxy_start"] = Choice(("random", "class_means"))
    return {**space, **_batches(run, found)}


def _batches(run: RunConfig, found: Method) -> Space:
    """Images of a class in a batch, for losses within a batch of so many of each; for whole classes, whether so."""
    own, size = run.sampler.per_class, run.sampler.batch_size
    kind = found.sampler_of(run.method.params) if run.sampler.name == "auto" else run.sampler.name
    numbers = tuple(n for n in sorted({own, *PER_CLASS}) if size % n == 0)
    if not found.within_batch or kind not in ("m_per_class", "fastap") or len(numbers) < 2:
        return {}
    whole = {"sampler.name": Choice(("fastap", "m_per_class"))} if kind == "fastap" else {}
    return {**whole, "sampler.per_class": Choice(numbers)}


def published(run: RunConfig, space: Space) -> Setting:
    """The setting before any search: the method's published parameters, the bench's rates and batches."""
    found = method(run.method.name)
    searched = found.searched(run.method.params)
    defaults = {f"method.params.{key}": value for key, (_, value) in searched.items()}
    defaults |= {f"optimizer.{key}": value for key, value in run.optimizer}
    sampler = found.sampler_of(run.method.params) if run.sampler.name == "auto" else run.sampler.name
    defaults |= {"proxy_start": run.proxy_start, "sampler.name": sampler, "sampler.per_class": run.sampler.per_class}
    return {key: defaults[key] for key in space if isinstance(defaults.get(key), int | float | str)}


def apply(run: RunConfig, setting: Setting) -> RunConfig:
    """`run` with the setting's values."""
    values = run.model_dump()
    for key, value in setting.items():
        *tables, last = key.split(".")
        at = values
        for table in tables:
            at = at.setdefault(table, {})
        at[last] = value
    return build_config(RunConfig, values)


def scaled(run: RunConfig, share: float) -> Setting:
    """`share` of the steps of `run`, with the schedule of its rates scaled alike, and looked at as often."""
    rates = run.optimizer
    return {
        "steps": max(1, round(run.steps * share)),
        "eval_every": max(1, round(run.eval_every * share)),
        "optimizer.warmup_steps": round(rates.warmup_steps * share),
        "optimizer.frozen_steps": round(rates.frozen_steps * share),
        "optimizer.decay_every": rates.decay_every and max(1, round(rates.decay_every * share)),
    }


def draw(space: Space, seed: str) -> Setting:
    """A random setting."""
    dice = random.Random(seed)
    return {key: _draw(space[key], dice) for key in sorted(space)}


def suggest(space: Space, tried: tuple[Tried, ...], seed: str) -> Setting:
    """What the tree-structured Parzen estimator tries after these trials; the same on every machine."""
    return dict(_suggest(tuple(sorted(space.items())), tried, seed))


def best_of(tried: Mapping[int, Tried]) -> int:
    """The number of the complete trial with the highest mean over folds, the first of equals; 0 if there is none."""
    scores = {number: fmean(each.folds) for number, each in sorted(tried.items()) if each.complete}
    return max(scores, key=lambda number: scores[number]) if scores else 0


@cache
def _suggest(space: tuple[tuple[str, Range], ...], tried: tuple[Tried, ...], seed: str) -> tuple[Any, ...]:
    optuna = quiet_optuna()
    number = random.Random(seed).getrandbits(32)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=number, n_startup_trials=1)
    )
    ranges = distributions(dict(space))
    for each in tried:
        study.add_trial(frozen_trial(each, ranges))
    asked = study.ask(ranges).params
    return tuple((key, _rounded(asked[key])) for key in ranges)


def distributions(space: Space) -> dict[str, Any]:
    """The space as Optuna's distributions."""
    optuna = quiet_optuna()
    one_of = optuna.distributions.CategoricalDistribution
    real, whole = optuna.distributions.FloatDistribution, optuna.distributions.IntDistribution
    return {
        key: one_of(each.values)
        if isinstance(each, Choice)
        else (whole if isinstance(each, Whole) else real)(each.low, each.high, log=each.log)
        for key, each in space.items()
    }


def frozen_trial(tried: Tried, ranges: Mapping[str, Any]) -> Any:
    """A finished trial for Optuna; values outside their range, which published ones may be, are clamped to it."""
    optuna = quiet_optuna()
    given = {key: _clamped(value, ranges[key]) for key, value in tried.setting if key in ranges}
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        params=given,
        distributions={key: ranges[key] for key in given},
        state=states.COMPLETE if tried.complete else states.PRUNED,
        value=fmean(tried.folds) if tried.complete else None,
        intermediate_values={fold: fmean(tried.folds[: fold + 1]) for fold in range(len(tried.folds))},
    )


def quiet_optuna() -> Any:
    """Optuna, imported on first use, without its log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _clamped(value: Any, range: Any) -> Any:
    return min(max(value, range.low), range.high) if hasattr(range, "low") else value


def _around(rate: float, factor: float) -> Real:
    return Real(rate / factor, rate * factor, log=True)


def _draw(each: Range, dice: random.Random) -> float | int | str:
    if isinstance(each, Choice):
        return dice.choice(each.values)
    if isinstance(each, Whole) and not each.log:
        return dice.randint(each.low, each.high)
    value = exp(dice.uniform(log(each.low), log(each.high))) if each.log else dice.uniform(each.low, each.high)
    return round(value) if isinstance(each, Whole) else _rounded(value)


def _rounded(value: float | int | str) -> float | int | str:
    """Four digits: enough for any hyper-parameter, and as many as tables show."""
    return value if isinstance(value, int | str) else float(f"{value:.4g}")


def as_key(setting: Setting) -> tuple[tuple[str, Any], ...]:
    """The setting as a value that can be compared and hashed."""
    return tuple(sorted(json.loads(json.dumps(setting)).items()))
