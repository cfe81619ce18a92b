"""What goes wrong in training, noticed while it happens and said in plain words, with a remedy.

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

LOOK_EVERY = 10  # steps between two looks: neighbouring steps tell the same, and so a look costs under 1 % of them
WINDOW = 8  # looks that must agree: one batch says nothing, and a network that starts flat needs some steps
ROWS = 256  # embeddings looked at: enough to tell a line from a plane
SPREAD = 1e-3  # variance of unit embeddings, 1 at most: below it the mean cosine of any two is above 0.999
RANK = 1.05  # a line has 1; sound runs of proxy losses pass through 1.1 in their first 100 steps
RANK_CLASSES = 5  # with fewer classes in the batch, a line may be all that there is to find
LONELY = 0.5  # share of anchors without a positive: above it most of the batch is computed for nothing
ACTIVE = 0.02  # share of embeddings with a gradient: below it 49 of 50 are computed for nothing
VANISHED = 1e-8  # norm of the network's gradient: each entry is below Adam's usual epsilon, so that steps shrink too
EXPLODED = 100.0  # times the norm at the first looks: in sound runs it grows by less than 10
STUCK = 0.01  # relative distance from a value that means nothing is learned: sound runs leave it within a few looks
ELEMENTS = 4096  # of each parameter of the loss, evenly chosen, to see whether it moves
VALIDATIONS = 5  # after the first, that must bring some rise
RISE = 0.01  # of the way from the first validation score to 1
ADVICE = {
    "untrained": ("{untrained} of {loss} does not learn: no optimiser knows it, or it never moves",
                  "Build groups with nearfield.param_groups(model, loss, recipe), and set optimizer.loss_lr above 0"),
    "no_positives": ("{lonely:.0%} of the anchors have no positive in their batch and teach nothing",
                     'Set sampler.name to "m_per_class", or enlarge sampler.batch_size'),
    "collapse": ("embeddings collapse: effective rank {rank:.1f} of {dim}, variance {spread:.1e} of at most 1",
                 "Lower optimizer.lr, or start with semi-hard instead of hard mining"),
    "inactive": ("only {active:.1%} of the embeddings get a gradient, the others fulfil {loss}",
                 "If scores are not good enough yet, enlarge its margin, mine harder negatives or enlarge the batch"),
    "vanishing": ("the network's gradient vanishes: its norm is {norm:.1e}",
                  "Check that no layer is frozen or detached; if a large step killed the network, lower optimizer.lr"),
    "exploding": ("the network's gradient explodes: its norm is {norm:.1e}, and was {first_norm:.1e} at first",
                  "Lower optimizer.lr, lengthen optimizer.warmup_steps, or clip the gradient"),
    "margin": ("{loss} is stuck at {value:.4g}, its value when all embeddings are equal",
               "Lower optimizer.lr, mine semi-hard, or lower a margin that is large beside the distances"),
    "log_n": ("{loss} is stuck at {value:.4g}, its value when all choices are equally likely",
              "Sharpen its softmax (a temperature of 0.05 to 0.1 is usual), or raise optimizer.lr"),
    "flat": ("validation is flat: {first:.4f} at step {start}, at best {best:.4f} in {count} validations since",
             "Try an optimizer.lr ten times lower or higher, and check that the labels fit the images"),
}  # fmt: skip
ROOTS = {"no_positives", "collapse", "inactive"}  # after one of these, what follows from it is not reported
SYMPTOMS = {"inactive", "vanishing", "margin", "log_n"}


class Finding(NamedTuple):
    """One cause of trouble: a short `code`, the step at which it was seen, and what it is and what helps."""

    code: str
    step: int
    message: str


class Doctor:
    """Watches a training run and reports each cause at most once; it changes no weight, gradient or random state."""

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.loss, self.optimizer = loss, optimizer
        self._found: list[str] = []
        self._seen: dict[str, list[float]] = {}  # the last WINDOW values of everything that is watched
        self._params: dict[str, list[float]] = {}  # of the loss: a sum at the first look, and looks it has kept since
        self._scores: list[tuple[int, float]] = []

    def look(
        self, step: int, embeddings: Tensor, labels: Tensor, value: float, gradient: Tensor | None = None,
        grad_norm: float | None = None,
    ) -> list[Finding]:  # fmt: skip
        """What a training step shows; to be called every `LOOK_EVERY` steps, before gradients are set to zero.

        `gradient` (B, D) is that of the loss with respect to the embeddings, if it was kept; `grad_norm` the norm of
        the network's gradient before clipping, by default that of what its parameters hold now.
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
        """What a validation score, the higher the better and 1 at most, shows beside the earlier ones."""
        self._scores.append((step, score))
        (start, first), best = self._scores[0], max((later for _, later in self._scores[1:]), default=score)
        flat = len(self._scores) == 1 + VALIDATIONS and best - first < RISE * (1 - first)
        return self._report(step, {"flat": flat}, {"start": start, "first": first, "best": best, "count": VALIDATIONS})

    def state_dict(self) -> dict[str, Any]:
        """All that was seen and said, as plain numbers and text."""
        return copy.deepcopy({name: getattr(self, f"_{name}") for name in ("found", "seen", "params", "scores")})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: what was said is not repeated, what was seen is not forgotten."""
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
            "no_positives": usual["lonely"] > LONELY,
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
            if p.requires_grad and looks >= 0:  # -1 once it has moved
                now = float(p.flatten()[:: max(1, p.numel() // ELEMENTS)].double().sum())
                self._params[name] = [now, 0 if math.isnan(total) else looks + 1 if now == total else -1]

    def _norm(self) -> float:
        """The norm of the gradient of all that is trained but what only the loss holds."""
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
