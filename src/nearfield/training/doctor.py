"""Diagnose what goes wrong in training while it happens, in plain words and with a remedy.

Axes: B embeddings of a batch, D dims.
"""

from __future__ import annotations

import copy
import math
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.losses.protocols import Counted, Idles
from nearfield.losses.proxy_loss import within_batch

LOOK_EVERY = 10  # steps between two looks: adjacent steps show the same, and so looking costs under 1 % of the time
WINDOW = 8  # looks that must agree: one batch proves nothing, and a network that starts flat needs some steps
ROWS = 256  # embeddings examined: enough to tell a line from a plane
SPREAD = 1e-3  # variance of unit embeddings, 1 at most: below it the mean cosine of any two is above 0.999
RANK = 1.05  # a line has 1; healthy runs of proxy losses pass through 1.1 in their first 100 steps
RANK_CLASSES = 5  # with fewer classes in the batch, a line may be the correct solution
LONELY = 0.5  # share of anchors without a positive: above it, most of the batch is wasted
ACTIVE = 0.02  # share of embeddings with a gradient: below it, 49 of 50 are wasted
VANISHED = 1e-8  # norm of the network's gradient: every entry is below Adam's usual epsilon, so that steps shrink too
EXPLODED = 100.0  # times the norm at the first looks: in healthy runs it grows by less than 10
STUCK = 0.01  # relative distance from the value of an untrained model: healthy runs leave it within a few looks
ELEMENTS = 4096  # of each parameter of the loss, evenly spaced, to see whether it changes
VALIDATIONS = 5  # after the first, in which the score must rise
RISE = 0.01  # of the distance from the first validation score to 1
ADVICE = {
    "untrained": ("{untrained} of {loss} does not learn: it is missing from the optimizer, or never changes",
                  "Build groups with nearfield.param_groups(model, loss, recipe), and set optimizer.loss_lr above 0"),
    "one_class": ("all items of a batch have one label: there are no negatives, and {loss} compares nothing",
                  'Set sampler.name to "m_per_class", with sampler.batch_size of several times sampler.per_class'),
    "no_positives": ("{lonely:.0%} of the anchors have no positive in their batch and contribute nothing",
                     'Set sampler.name to "m_per_class", or enlarge sampler.batch_size'),
    "collapse": ("embeddings collapse: effective rank {rank:.1f} of {dim}, variance {spread:.1e} of at most 1",
                 "Lower optimizer.lr, or start with semi-hard instead of hard mining"),
    "inactive": ("only {active:.1%} of the embeddings receive a gradient; the rest already satisfy {loss}",
                 "If scores are not good enough yet, increase its margin, mine harder negatives or enlarge the batch"),
    "vanishing": ("the network's gradient vanishes: its norm is {norm:.1e}",
                  "Check that no layer is frozen or detached; if a large step broke the network, lower optimizer.lr"),
    "exploding": ("the network's gradient explodes: its norm is {norm:.1e}, and was {first_norm:.1e} at first",
                  "Lower optimizer.lr, lengthen optimizer.warmup_steps, or clip the gradient"),
    "margin": ("{loss} is stuck at {value:.4g}, its value when all embeddings are equal",
               "Lower optimizer.lr, mine semi-hard negatives, or lower a margin that exceeds most distances"),
    "log_n": ("{loss} is stuck at {value:.4g}, its value when all choices are equally likely",
              "Sharpen its softmax (a temperature of 0.05 to 0.1 is usual), or raise optimizer.lr"),
    "flat": ("validation is flat: {first:.4f} at step {start}, at best {best:.4f} in {count} validations since",
             "Try an optimizer.lr ten times lower or higher, and check that the labels match the images"),
    "no_gain": ("training did not improve on its start: no validation score exceeds the {best:.4f} of step 0",
                "The weights of step 0 are kept. Lower optimizer.lr, train longer, or use the network as it is"),
}  # fmt: skip
ROOTS = {
    "one_class",
    "no_positives",
    "collapse",
    "inactive",
}  # root causes: after one of them, its symptoms are not reported
SYMPTOMS = {"inactive", "vanishing", "margin", "log_n"}


class Finding(NamedTuple):
    """One problem: a short `code`, the step at which it was found, and a message with its remedy."""

    code: str
    step: int
    message: str


class Doctor:
    """Watches a training run and reports each problem at most once; changes no weight, gradient or random state."""

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.loss, self.optimizer = loss, optimizer
        self._found: list[str] = []
        self._seen: dict[str, list[float]] = {}  # the last WINDOW values of everything that is watched
        self._params: dict[str, list[float]] = {}  # of the loss: a sum, and the looks since it changed
        self._scores: list[tuple[int, float]] = []

    def look(
        self, step: int, embeddings: Tensor, labels: Tensor, value: float, gradient: Tensor | None = None,
        grad_norm: float | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Findings of a training step; call it every `LOOK_EVERY` steps, before gradients are set to zero.

        `gradient` (B, D) is that of the loss with respect to the embeddings, if available; `grad_norm` the norm of the
        network's gradient before clipping, by default the norm of the gradients that its parameters hold now.
        """
        with torch.no_grad():
            (spread, rank), norm = shape(embeddings), self._norm() if grad_norm is None else grad_norm
            self._see(spread=spread, rank=rank, norm=norm, value=value)
            self._see(lonely=lonely(self.loss, labels), classes=len(labels.unique()))
            if gradient is not None:
                self._see(active=float(gradient.ne(0).any(1).float().mean()))
            if idle := idle_value(self.loss, labels):
                self._see(gap=abs(value / idle - 1))
            if len(self._seen.get("first_norm", ())) < WINDOW:
                self._see(first_norm=norm)
            self._watch_parameters()
        return self._diagnose(step, embeddings.shape[1], labels)

    def look_at_scores(self, step: int, score: float) -> list[Finding]:
        """Findings of a validation score (higher is better, at most 1) compared with the earlier ones."""
        self._scores.append((step, score))
        (start, first), best = self._scores[0], max((later for _, later in self._scores[1:]), default=score)
        flat = len(self._scores) == 1 + VALIDATIONS and best - first < RISE * (1 - first)
        return self._report(step, {"flat": flat}, {"start": start, "first": first, "best": best, "count": VALIDATIONS})

    def look_at_choice(self, step: int, best_step: int, best: float) -> list[Finding]:
        """Findings of the step that validation chose, at the end."""
        return self._report(step, {"no_gain": best_step == 0 < step}, {"best": best})

    def state_dict(self) -> dict[str, Any]:
        """Everything observed and reported, as plain numbers and text."""
        return copy.deepcopy({name: getattr(self, f"_{name}") for name in ("found", "seen", "params", "scores")})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume: what was reported is not repeated, what was observed is not forgotten."""
        for name in ("found", "seen", "params", "scores"):
            setattr(self, f"_{name}", copy.deepcopy(state[name]))

    def _report(self, step: int, causes: dict[str, bool], facts: dict[str, Any]) -> list[Finding]:
        findings = []
        for code, present in causes.items():
            if present and code not in self._found and not (code in SYMPTOMS and ROOTS.intersection(self._found)):
                self._found.append(code)
                findings.append(Finding(code, step, "{}. {}.".format(*ADVICE[code]).format(**facts)))
        return findings

    def _see(self, **values: float) -> None:
        for name, value in values.items():
            self._seen[name] = [*self._seen.get(name, ()), math.inf if math.isnan(value) else value][-WINDOW:]

    def _diagnose(self, step: int, dim: int, labels: Tensor) -> list[Finding]:
        known = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        params = [(name, p) for name, p in self.loss.named_parameters() if p.requires_grad]
        untrained = [name for name, p in params if id(p) not in known or self._params[name][1] >= WINDOW]
        full = {name: values for name, values in self._seen.items() if len(values) == WINDOW}
        usual = {name: median(full[name]) if name in full else math.nan for name in (*self._seen, "active")}
        norm, idle = usual["norm"], self.loss.idle(labels).cause if isinstance(self.loss, Idles) else "log_n"
        causes = {  # NaN, of what was not seen often enough, is neither above nor below anything
            "untrained": bool(untrained),
            "one_class": usual["classes"] == 1 and (within_batch(type(self.loss)) or usual["lonely"] == 1),
            "no_positives": usual["lonely"] > LONELY and usual["classes"] > 1,
            "collapse": usual["spread"] < SPREAD
            or (usual["rank"] < RANK and dim > 1 and usual["classes"] >= RANK_CLASSES),
            "inactive": usual["active"] < ACTIVE,
            "vanishing": norm < VANISHED,
            "exploding": norm == math.inf or norm > EXPLODED * usual["first_norm"] > 0,
            idle: max(full.get("gap", [1.0])) < STUCK,
        }
        facts = {"loss": type(self.loss).__name__, "untrained": ", ".join(untrained), "dim": dim}
        return self._report(step, causes, usual | facts)

    def _watch_parameters(self) -> None:
        for name, p in self.loss.named_parameters():
            total, looks = self._params.setdefault(name, [math.nan, 0])
            if p.requires_grad and p.numel() and looks >= 0:  # -1 once it has moved
                now = float(p.flatten()[:: max(1, p.numel() // ELEMENTS)].double().sum())
                self._params[name] = [now, 0 if math.isnan(total) else looks + 1 if now == total else -1]

    def _norm(self) -> float:
        """The norm of the gradient of everything trained except the loss's own parameters."""
        own = {id(p) for p in self.loss.parameters()}
        groups = [g for g in self.optimizer.param_groups if g.get("name") != "loss"]
        network = [p for g in groups for p in g["params"] if "name" in g or id(p) not in own]  # they may share a head
        norms = [p.grad.float().norm() for p in network if p.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0


def shape(embeddings: Tensor) -> tuple[float, float]:
    """Variance of the unit embeddings, from 0 to 1, and its effective rank (sum e)^2 / sum e^2 over eigenvalues e."""
    x = embeddings.detach()[:: math.ceil(len(embeddings) / ROWS)].float()  # (B, D)
    x = F.normalize(x, dim=1, eps=1e-12)
    x = x - x.mean(0)
    gram = x.T @ x if x.shape[1] < len(x) else x @ x.T  # its trace and squared norm are those sums
    trace, squares = torch.stack([x.square().sum(), gram.square().sum()]).tolist()
    return trace / len(x), trace**2 / squares if squares > 0 else 1.0


def lonely(loss: nn.Module, labels: Tensor) -> float:
    """Share of anchors without a positive: in the batch, unless the loss compares with something else too."""
    if within_batch(type(loss)):
        return float((labels.unique(return_counts=True)[1] == 1).sum()) / len(labels)
    last = loss.last if isinstance(loss, Counted) else {}
    return last.get("unusable_anchors", 0) / max(1, last.get("anchors", 1))


def idle_value(loss: nn.Module, labels: Tensor) -> float | None:
    """What a loss is when all pairs look alike: its margin, or the log of the number of choices; None if unknown."""
    return loss.idle(labels).value if isinstance(loss, Idles) else None
