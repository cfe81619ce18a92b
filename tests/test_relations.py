"""DRML: every part of the reconstruction, and its training as a head with a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from narrow import narrow
from torch import Tensor
from torch.nn import functional as F

from nearfield import losses
from nearfield.config import RunConfig, build_config
from nearfield.errors import InputError
from nearfield.losses.proxies import ProxyAnchor
from nearfield.losses.relations import DRML, RelationalEmbedder
from nearfield.training.build import build_learner, build_sampler
from nearfield.training.loop import train
from nearfield.training.run_folder import RunFolder

M, K, FEATURES, D = 12, 4, 20, 8


@pytest.fixture
def embedder() -> RelationalEmbedder:
    torch.manual_seed(0)
    found = RelationalEmbedder(FEATURES, D, K).double()
    for parameter in found.parameters():  # so that relations and biases have an effect
        torch.nn.init.normal_(parameter)
    return found


def features() -> Tensor:
    return torch.randn(M, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def slow(e: RelationalEmbedder, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Item by item, branch by branch, as in the equations; nothing detached."""
    size, nodes, errors, relations, embeddings = FEATURES // K, [], [], [], []
    for item in x:
        f = [item[k * size : (k + 1) * size] for k in range(K)]
        n = [F.normalize(e.nodes[k](f[k]), dim=0) for k in range(K)]
        errors.append(torch.stack([(f[k] - e.decoders[k](n[k])).square().mean() for k in range(K)]))
        s = torch.zeros(K, K, dtype=x.dtype)
        for k in range(K):
            for to in range(K):
                s[k, to] = e.score(e.sources[k](f[k]) - e.targets[to](f[to])).relu()
        for to in range(K):
            if s[:, to].sum() > 0:
                s[:, to] = s[:, to] / s[:, to].sum()
        told = [sum((s[k, to] * n[k] for k in range(K)), torch.zeros_like(n[to])) for to in range(K)]
        out = [e.output(torch.cat([n[to], told[to]])) for to in range(K)]
        nodes.append(torch.stack(n))
        relations.append(s)
        embeddings.append(torch.cat(out))
    return torch.stack(nodes), torch.stack(errors), torch.stack(relations), torch.stack(embeddings)


def test_equals_the_equations(embedder: RelationalEmbedder) -> None:
    for found, expected in zip(embedder.look(features()), slow(embedder, features()), strict=True):
        torch.testing.assert_close(found, expected)


def test_starts_as_the_nodes_themselves() -> None:
    """V = [I | 0]: at first the relations change nothing."""
    views = RelationalEmbedder(FEATURES, D, K).double().look(features())
    torch.testing.assert_close(views.embedding, views.nodes.flatten(1))


def test_starts_as_released() -> None:
    """Every layer has a bias, at 0; weights are Kaiming-normal over fan-out, but for V."""
    torch.manual_seed(0)
    layers = {n: m for n, m in RelationalEmbedder(800, 400, 4).named_modules() if isinstance(m, torch.nn.Linear)}
    assert len(layers) == 4 * 4 + 2
    assert all(layer.bias is not None and not bool(layer.bias.any()) for layer in layers.values())
    for name, layer in layers.items():
        if name not in ("output", "score"):
            assert float(layer.weight.detach().std()) == pytest.approx((2 / layer.out_features) ** 0.5, rel=0.03), name
    assert float(layers["score"].weight.detach().std()) == pytest.approx(2**0.5, rel=0.3)


def test_biases_of_the_edges_are_trained(embedder: RelationalEmbedder) -> None:
    embedder.look(features()).embedding.square().sum().backward()
    for layer in (*embedder.sources, *embedder.targets):
        assert bool(narrow(torch.nn.Linear, layer).bias.grad.any())  # type: ignore[union-attr]


def test_features_that_are_all_0_have_no_direction_and_no_gradient() -> None:
    """A slice of features after ReLU may be 0, and biases start at 0: the node is 0, and so is what it passes back."""
    loss = losses.create("drml", num_classes=5, dim=D, features=FEATURES)
    x = features().float()
    x[:, : FEATURES // K] = 0
    x[3] = 0
    x.requires_grad_()
    loss(x, torch.arange(M) % 5).backward()
    assert float(x.grad[:, : FEATURES // K].abs().max()) == 0  # type: ignore[index]
    grads = [p.grad for n, p in loss.named_parameters() if p.grad is not None and n.startswith("embedder.nodes")]
    assert max(float(g.abs().max()) for g in grads) < 1e3


def test_the_published_base_is_proxy_anchor_as_released() -> None:
    for given, expected in ((None, (64.0, 0.2)), ({"alpha": 16.0}, (16.0, 0.2))):
        loss = narrow(DRML, losses.create("drml", num_classes=5, dim=D, base_params=given))
        for part in (loss.whole, *loss.parts):
            base = narrow(ProxyAnchor, part)
            assert (base.alpha, base.delta) == expected


@pytest.mark.parametrize("base", ["margin", "triplet"])
def test_items_find_positives_in_their_branch(base: str) -> None:
    """Batches of the base, m images of a class; of 128 shuffled images of 75 classes a third has one."""
    shares = {}
    labels = torch.arange(75).repeat_interleave(58)
    for sampler in ("auto", "shuffle"):
        config = build_config(
            RunConfig,
            {
                "method": {"name": "drml", "params": {"base": base}},
                "sampler": {"name": sampler, "batch_size": 128, "per_class": 4},
            },
        )
        batch = labels[next(iter(build_sampler(config, labels, torch.zeros_like(labels))))]
        branch = torch.randint(K, (len(batch),), generator=torch.Generator().manual_seed(0))
        same = (batch[:, None] == batch) & (branch[:, None] == branch)
        shares[sampler] = float((same.sum(1) > 1).double().mean())
    assert shares["auto"] > 0.45 > 0.4 > shares["shuffle"]


def test_relations_are_shares_of_their_sources(embedder: RelationalEmbedder) -> None:
    relations = embedder.look(features()).relations
    total = relations.sum(1)  # over the source
    assert bool((relations >= 0).all())
    assert bool((((total - 1).abs() < 1e-9) | (total == 0)).all())
    embedder.score.bias.data.fill_(-1e3)  # no relation at all
    silent = embedder.look(features())
    assert not bool(silent.relations.any())
    alone = embedder.output(torch.cat([silent.nodes, torch.zeros_like(silent.nodes)], 2)).flatten(1)
    torch.testing.assert_close(silent.embedding, alone)


def test_reconstruction_trains_the_decoders_alone(embedder: RelationalEmbedder) -> None:
    x = features().requires_grad_()
    embedder.look(x).errors.mean().backward()
    assert x.grad is None
    trained = {name.split(".")[0] for name, p in embedder.named_parameters() if p.grad is not None}
    assert trained == {"decoders"}


def test_relations_do_not_train_the_features(embedder: RelationalEmbedder) -> None:
    x = features().requires_grad_()
    embedder.look(x).relations.square().sum().backward()
    assert x.grad is None
    trained = {name.split(".")[0] for name, p in embedder.named_parameters() if p.grad is not None}
    assert trained == {"sources", "targets", "score"}


def test_each_item_teaches_the_branch_that_reconstructs_it_best() -> None:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_classes": 5, "dim": D, "features": FEATURES}
    loss = narrow(DRML, losses.create("drml", **settings, emb_weight=2.0, rec_weight=3.0)).double()
    x, labels = features(), torch.arange(M) % 5
    views = loss.embedder.look(x)
    branch = views.errors.argmin(1)
    expected = 2.0 * loss.whole(views.embedding, labels) + 3.0 * views.errors.mean()
    for k in branch.unique().tolist():
        expected = expected + loss.parts[k](views.nodes[branch == k, k], labels[branch == k])
    torch.testing.assert_close(loss(x, labels), expected)


@pytest.mark.parametrize("base", ["proxy_anchor", "triplet", "margin", "cosface"])
@pytest.mark.parametrize("items", [1, 2, 9])
def test_empty_branches_add_nothing(base: str, items: int) -> None:
    loss = losses.create("drml", num_classes=5, dim=D, base=base)
    x = torch.randn(1, D).expand(items, D).clone().requires_grad_()  # all equal: one branch gets all
    if items == 1 and base in ("triplet", "margin"):
        with pytest.raises(InputError, match="at least 2 rows"):
            loss(x, torch.zeros(1, dtype=torch.int64))
        return
    value = loss(x, torch.arange(items) % 2)
    value.backward()
    assert bool(value.isfinite())
    assert bool(x.grad.isfinite().all())  # type: ignore[union-attr]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="multiples of branches; got 8, 10 and 4"):
        losses.create("drml", num_classes=5, dim=10, features=8)
    with pytest.raises(InputError, match="backbone's 20 features; got 8"):
        losses.create("drml", num_classes=5, dim=8, features=20)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1]))


def test_the_head_belongs_to_model_and_loss(tmp_path: Path) -> None:
    quick: dict[str, Any] = {
        "method": {"name": "drml", "params": {"base_params": {"alpha": 16.0}}},
        "data": {"name": "digits"},
        "model": {"width": 4, "dim": 8},
        "sampler": {"batch_size": 32},
        "steps": 4,
        "eval_every": 2,
    }
    config = build_config(RunConfig, quick)
    images = torch.zeros(3, 8, 8, dtype=torch.uint8)
    model, loss, forward = build_learner(config, 4)
    assert isinstance(loss, DRML)
    assert model.head is loss.embedder
    assert forward(images).shape == (3, 16)  # features
    assert model(images).shape == (3, 8)
    assert narrow(ProxyAnchor, loss.whole).alpha == 16.0
    train(config, tmp_path)
    assert "head.output.weight" in RunFolder(tmp_path).weights()
