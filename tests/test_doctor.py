"""The training doctor: silent on sound runs, and right about provoked failures."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import ModelConfig, OptimizerConfig
from nearfield.data import load, pixels
from nearfield.losses.memory import CrossBatchMemory
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.models import build_model
from nearfield.pairs import PairLoss
from nearfield.samplers import build_sampler
from nearfield.training.doctor import ADVICE, VALIDATIONS, WINDOW, Doctor, Finding, idle_value, lonely, shape
from nearfield.training.optimizers import build_optimizer

CLASSES, DIM = 40, 16


@cache
def glyphs() -> tuple[Tensor, Tensor]:
    dataset = load("glyphs")
    rows = np.flatnonzero(dataset.labels < CLASSES)
    return torch.from_numpy(pixels(dataset)[rows]), torch.from_numpy(dataset.labels[rows])


def create(name: str, **params: Any) -> nn.Module:
    asked = losses.method(name).parameters
    known: dict[str, Any] = {"num_classes": CLASSES, "dim": DIM}
    torch.manual_seed(0)
    return losses.create(name, **{k: v for k, v in known.items() if k in asked}, **params)


def batches(labels: Tensor, sampler: str, size: int) -> Iterator[Tensor]:
    drawn = build_sampler(sampler, labels.numpy(), size, per_class=4, seed=0)
    while True:
        for batch in drawn:
            yield torch.tensor(batch)


def train(
    loss: nn.Module, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, *,
    steps: int = WINDOW + 2, every: int = 1, sampler: str = "m_per_class", size: int = 32,
    after: Callable[[Doctor, int], None] | None = None, **recipe: Any,
) -> list[Finding]:  # fmt: skip
    """Everything that is found in a short real training."""
    images, labels = glyphs()
    model = build_model(ModelConfig(width=4, dim=DIM), 0) if model is None else model
    optimizer = build_optimizer(model, loss, OptimizerConfig(**recipe)) if optimizer is None else optimizer
    doctor, findings = Doctor(loss, optimizer), []
    for step, rows in zip(range(1, steps + 1), batches(labels, sampler, size), strict=False):
        x = model(images[rows])
        value = loss(x, labels[rows])
        gradient = torch.autograd.grad(value, x, retain_graph=True)[0] if x.requires_grad else None
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % every == 0:
            findings += doctor.look(step, x, labels[rows], value.item(), gradient)
            if after is not None:
                after(doctor, step)
    return findings


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


# ---------------------------------------------------------------------------------------------------------------
# Sound runs


SOUND = ["multi_similarity", "triplet", "proxy_anchor", "proxy_softmax", "contrastive", "fastap", "margin", "supcon"]


@pytest.mark.parametrize("method", SOUND)
def test_a_sound_run_is_left_alone(method: str) -> None:
    assert train(create(method), steps=48, every=3) == []


@pytest.mark.parametrize("method", ["proxy_softmax", "proxy_anchor", "cosface"])
def test_shuffled_batches_are_fine_for_proxies(method: str) -> None:
    assert train(create(method), sampler="shuffle", steps=45, every=3) == []


def test_semi_hard_triplets_are_left_alone() -> None:
    assert train(create("triplet", mining="semihard"), steps=48, every=3) == []


# ---------------------------------------------------------------------------------------------------------------
# Provoked failures


class Constant(nn.Module):
    """The same embedding, whatever the image, but for a little noise."""

    def __init__(self, noise: float = 1e-3) -> None:
        super().__init__()
        self.weight, self.noise = nn.Parameter(torch.ones(DIM)), noise

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).float()[:, :DIM] - images.float().mean()
        return self.weight + self.noise * flat / 255


def test_hard_mining_at_a_huge_rate_collapses() -> None:
    found = train(create("triplet", mining="hard"), steps=48, every=3, lr=0.3, warmup_steps=0)
    assert codes(found) == ["collapse"]
    assert "effective rank" in found[0].message
    assert "semi-hard" in found[0].message


@pytest.mark.parametrize("method", ["contrastive", "fastap", "proxy_softmax"])
def test_a_constant_network_is_a_collapse(method: str) -> None:
    assert codes(train(create(method), Constant(), steps=WINDOW, lr=1e-6))[:1] == ["collapse"]


def test_embeddings_on_a_line_are_a_collapse_if_there_are_many_classes() -> None:
    labels = torch.arange(8).repeat_interleave(4)
    direction, place = (
        torch.randn(1, DIM, generator=torch.Generator().manual_seed(0)),
        torch.linspace(-1, 1, 32)[:, None],
    )
    loss = create("multi_similarity")
    for classes, expected in ((8, ["collapse"]), (2, [])):
        doctor = new_doctor(loss)
        found = [doctor.look(i, place * direction, labels % classes, 0.5, grad_norm=1.0) for i in range(WINDOW)]
        assert codes([f for each in found for f in each]) == expected


def test_proxies_without_an_optimiser_are_named() -> None:
    loss, model = create("proxy_anchor"), build_model(ModelConfig(width=4, dim=DIM), 0)
    found = train(loss, model, torch.optim.Adam(model.parameters(), lr=1e-3))
    assert codes(found) == ["untrained"]
    assert found[0].step == 1
    assert "proxies of ProxyAnchor" in found[0].message


def test_proxies_that_never_move_are_named() -> None:
    loss, model = create("proxy_softmax"), build_model(ModelConfig(width=4, dim=DIM), 0)
    groups: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": loss.parameters(), "lr": 0.0}]
    assert codes(train(loss, model, torch.optim.Adam(groups, lr=1e-3))) == ["untrained"]


@pytest.mark.parametrize("method", ["triplet", "multi_similarity", "contrastive", "npairs"])
def test_tiny_shuffled_batches_have_no_positives(method: str) -> None:
    found = train(create(method), sampler="shuffle", size=8)
    assert codes(found)[:1] == ["no_positives"]
    assert "m_per_class" in found[0].message


def test_a_frozen_network_gets_no_gradient() -> None:
    model = build_model(ModelConfig(width=4, dim=DIM), 0).requires_grad_(False)
    assert codes(train(create("proxy_softmax"), model)) == ["vanishing"]


def test_an_exploding_gradient_is_found_whatever_its_scale() -> None:
    labels, x = torch.arange(8).repeat_interleave(4), torch.randn(32, DIM, generator=torch.Generator().manual_seed(0))
    for grown, expected in ((5.0, []), (1e3, ["exploding"]), (math.inf, ["exploding"]), (math.nan, ["exploding"])):
        doctor = new_doctor(create("multi_similarity"))
        norms = [1e-3] * WINDOW + [1e-3 * grown] * WINDOW
        found = [doctor.look(i, x, labels, 0.5, grad_norm=norm) for i, norm in enumerate(norms)]
        assert codes([f for each in found for f in each]) == expected


class Growing(nn.Module):
    """Embeddings three times as long at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = build_model(ModelConfig(width=4, dim=DIM), 0), 1.0

    def forward(self, images: Tensor) -> Tensor:
        self.scale *= 3
        embeddings: Tensor = self.inner(images)
        return self.scale * embeddings


def test_a_network_that_diverges_explodes() -> None:
    loss = create("contrastive", form="hadsell", normalize=False)
    assert codes(train(loss, Growing(), steps=2 * WINDOW, lr=1e-9)) == ["exploding"]


def test_the_norm_is_that_of_the_network_alone() -> None:
    loss, model = create("proxy_softmax"), nn.Linear(DIM, DIM)
    plain = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    x, labels = model(torch.randn(8, DIM, generator=torch.Generator().manual_seed(0))), torch.arange(8)
    loss(x, labels).backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    for optimizer in (plain, build_optimizer(model, loss, OptimizerConfig())):
        doctor = Doctor(loss, optimizer)
        doctor.look(1, x, labels, 1.0)
        assert doctor.state_dict()["seen"]["norm"] == pytest.approx([float(whole)])


def test_one_bad_batch_is_no_finding() -> None:
    labels, x = torch.arange(8).repeat_interleave(4), torch.randn(32, DIM, generator=torch.Generator().manual_seed(0))
    doctor = new_doctor(create("triplet"))
    for step in range(4 * WINDOW):
        bad = step % WINDOW == 3
        found = doctor.look(
            step, torch.ones_like(x) if bad else x, torch.arange(32) if bad else labels, 0.1 if bad else 0.2,
            torch.zeros_like(x) if bad else x, 0.0 if step % 2 and bad else math.inf if bad else 1.0,
        )  # fmt: skip
        assert found == []


def test_a_softmax_that_is_too_flat_is_stuck_at_log_n() -> None:
    found = train(create("proxy_softmax", temperature=100.0))
    assert codes(found) == ["log_n"]
    assert f"{math.log(CLASSES):.4g}" in found[0].message
    assert "temperature" in found[0].message
    assert codes(train(create("supcon", temperature=100.0))) == ["log_n"]


def test_tiny_embeddings_are_stuck_at_the_margin() -> None:
    loss = create("triplet", margin=1.0, normalize=False)
    model = nn.Sequential(build_model(ModelConfig(width=4, dim=DIM), 0), Shrink())
    assert codes(train(loss, model, lr=1e-5)) == ["margin"]


class Shrink(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1e-3 * nn.functional.normalize(x - x.mean(0))


def test_batches_that_teach_nothing_are_found() -> None:
    labels = torch.arange(8).repeat_interleave(4)
    loss, x = create("triplet", margin=0.1), torch.eye(DIM)[labels].requires_grad_()
    doctor, found = new_doctor(loss), []
    for step in range(WINDOW):
        value = loss(x, labels)
        (gradient,) = torch.autograd.grad(value, x)
        found += doctor.look(step, x, labels, value.item(), gradient, float(gradient.norm()))
    assert codes(found) == ["inactive"]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1] * (VALIDATIONS + 4), ["flat"]),
        ([0.5, 0.45, 0.44, 0.43, 0.42, 0.41, 0.4], ["flat"]),
        ([0.1] * VALIDATIONS, []),
        ([0.1, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1], []),
        ([0.98, 0.981, 0.98, 0.98, 0.98, 0.98, 0.98], []),
        ([1.0] * 9, []),
    ],
)
def test_flat_validation(scores: list[float], expected: list[str]) -> None:
    doctor = new_doctor(create("triplet"))
    assert codes([f for i, score in enumerate(scores) for f in doctor.look_at_scores(i, score)]) == expected


# ---------------------------------------------------------------------------------------------------------------
# The measures


def new_doctor(loss: nn.Module) -> Doctor:
    return Doctor(loss, torch.optim.SGD([nn.Parameter(torch.zeros(1)), *loss.parameters()], lr=0.1))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 300), st.integers(1, 40), st.integers(0, 10**6))
def test_shape_is_that_of_the_eigenvalues(rows: int, dim: int, seed: int) -> None:
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) + 1
    unit = nn.functional.normalize(x[:: math.ceil(rows / 256)].double())
    e = torch.linalg.eigvalsh(torch.cov(unit.T.reshape(dim, -1), correction=0).reshape(dim, dim))
    spread, rank = shape(x)
    assert spread == pytest.approx(float(e.sum()), rel=1e-4, abs=1e-6)
    if spread > 1e-3:
        assert rank == pytest.approx(float(e.sum() ** 2 / e.square().sum()), rel=1e-3)


IDLE = [
    ("triplet", {}), ("triplet", {"mining": "hard", "distance": "sqeuclidean"}), ("snr", {}), ("contrastive", {}),
    ("contrastive", {"form": "hadsell"}), ("contrastive", {"form": "hinge", "neg_margin": 0.4}), ("supcon", {}),
    ("nt_xent", {}), ("proxy_softmax", {}),
    ("proxy_nca", {}), ("proxy_nca", {"form": "probabilistic"}), ("proxy_softmax", {"sample": 20}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params"), IDLE)
def test_the_idle_value_is_what_the_loss_says_when_all_is_alike(name: str, params: dict[str, Any]) -> None:
    loss, labels = create(name, **params), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    labels = labels if name != "nt_xent" else labels.sort().values[[0, 1, 3, 4, 5, 6]]  # exact for equal classes
    alike = torch.arange(DIM).float().expand(len(labels), DIM)  # not constant in a row: SNR centres it
    if isinstance(loss, ProxyLoss):
        nn.init.ones_(loss.proxies)
    assert idle_value(loss, labels) == pytest.approx(loss(alike, labels).item(), rel=1e-4)


def test_a_memory_gives_positives_that_the_batch_has_not() -> None:
    inner = create("triplet")
    assert isinstance(inner, PairLoss)
    memory, x, labels = CrossBatchMemory(inner, 8, DIM), torch.randn(4, DIM), torch.arange(4)
    memory(x, labels)
    assert lonely(memory, labels) == 1.0
    memory(x, labels)
    assert lonely(memory, labels) == 0.0


# ---------------------------------------------------------------------------------------------------------------
# A guest that leaves no trace


def test_a_resumed_doctor_neither_repeats_nor_forgets() -> None:
    model = Constant()
    states: list[str] = []
    loss = create("proxy_softmax")
    whole = train(loss, model, steps=2 * WINDOW, lr=1e-6, after=lambda d, _: states.append(json.dumps(d.state_dict())))
    assert len(whole) == len(set(codes(whole))) >= 1
    labels = torch.arange(8).repeat_interleave(4)
    for at, expected in ((WINDOW - 2, ["collapse"]), (2 * WINDOW - 1, [])):
        doctor = new_doctor(loss)
        doctor.load_state_dict(json.loads(states[at]))
        assert json.dumps(doctor.state_dict()) == states[at]
        assert codes(doctor.look(99, torch.ones(32, DIM), labels, 9.0, grad_norm=1.0)) == expected
    first, second = new_doctor(loss), new_doctor(loss)
    assert not any(first.look_at_scores(i, 0.5) for i in range(VALIDATIONS))
    second.load_state_dict(first.state_dict())
    assert codes(second.look_at_scores(VALIDATIONS, 0.5)) == ["flat"]


def test_looking_changes_nothing() -> None:
    torch.manual_seed(3)
    loss, x, labels = create("margin"), torch.randn(64, DIM, requires_grad=True), torch.arange(64) // 4
    value = loss(x, labels)
    value.backward()
    doctor = Doctor(loss, torch.optim.SGD([x, *loss.parameters()], lr=0.1))
    tensors = [x, x.grad, *loss.state_dict().values(), *(p.grad for p in loss.parameters())]
    before, rng, last = [t.clone() for t in tensors if t is not None], torch.get_rng_state(), copy.copy(loss.last)
    doctor.look(1, x, labels, value.item(), x.grad)
    assert all(torch.equal(a, b) for a, b in zip(before, [t for t in tensors if t is not None], strict=True))
    assert torch.equal(rng, torch.get_rng_state())
    assert last == loss.last


def test_half_precision_is_looked_at_in_single() -> None:
    x = torch.randn(64, DIM, generator=torch.Generator().manual_seed(0))
    assert shape(x.bfloat16()) == pytest.approx(shape(x), rel=0.02)


def test_a_look_is_cheap() -> None:
    loss, labels = create("multi_similarity"), torch.arange(4096) // 4
    x, doctor = torch.randn(4096, 512), new_doctor(loss)
    times = []
    for step in range(5):
        begun = time.perf_counter()
        doctor.look(step, x, labels, 1.0, x, 1.0)
        times.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    loss(x.requires_grad_(), labels).backward()
    assert min(times) < 0.3 * (time.perf_counter() - begun)


def test_every_advice_is_a_cause_and_a_remedy() -> None:
    for cause, remedy in ADVICE.values():
        assert remedy[0].isupper()
        assert not (cause + remedy).endswith(".")


@pytest.mark.parametrize("name", ["multi_similarity", "contrastive", "supcon"])
def test_batches_of_one_class_are_found(name: str) -> None:
    """What samplers that group by label often give: everything is a positive, and nothing is compared."""
    loss, x = create(name), torch.randn(16, 8, requires_grad=True)
    doctor = Doctor(loss, torch.optim.SGD([x], 0.1))
    found: list[Finding] = []
    for step in range(WINDOW):
        labels = torch.full((16,), step)
        found += doctor.look(step, x, labels, float(loss(x, labels).detach()))
    assert [finding.code for finding in found if finding.code in ("one_class", "no_positives")] == ["one_class"]
    assert "m_per_class" in found[0].message


def test_a_class_of_proxies_may_fill_a_batch() -> None:
    loss, x = create("proxy_softmax"), torch.randn(16, DIM, requires_grad=True)
    doctor = Doctor(loss, torch.optim.SGD([x, *loss.parameters()], 0.1))
    labels = torch.zeros(16, dtype=torch.int64)
    found = [f for step in range(WINDOW) for f in doctor.look(step, x, labels, float(loss(x, labels).detach()))]
    assert "one_class" not in {finding.code for finding in found}
