"""DREML: random groupings, independent members, and their training one by one, in parallel or resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from narrow import narrow
from programs import forks

from nearfield import losses
from nearfield.config import RunConfig, build_config, load_config
from nearfield.errors import InputError
from nearfield.losses.ensembles import DREML, draw_groupings
from nearfield.models.ensemble import Ensemble
from nearfield.training import build
from nearfield.training.loop import Interrupted, train
from nearfield.training.run_folder import RunFolder

QUICK = {
    "method": {"name": "dreml", "params": {"members": 2, "meta_classes": 6}},
    "data": {"name": "digits"},
    "model": {"width": 4, "dim": 16},
    "sampler": {"batch_size": 32},
    "steps": 8,
    "eval_every": 4,
}


def quick(**changes: Any) -> RunConfig:
    return build_config(RunConfig, {**QUICK, **changes})


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_balanced_groupings_differ_by_one_class_at_most(members: int, classes: int, groups: int, seed: int) -> None:
    found = draw_groupings(members, classes, min(groups, classes), True, seed)
    for row in found:
        counts = row.bincount(minlength=min(groups, classes))
        assert int(counts.max() - counts.min()) <= 1
    assert torch.equal(found, draw_groupings(members, classes, min(groups, classes), True, seed))


def test_unbalanced_groupings_are_free_draws() -> None:
    found = draw_groupings(200, 12, 12, False, 0)
    assert found.min() == 0
    assert found.max() == 11
    filled = torch.stack([row.bincount(minlength=12) > 0 for row in found]).double().mean()
    assert abs(float(filled) - (1 - (11 / 12) ** 12)) < 0.03  # the probability of a meta-class that is not empty


def test_is_the_sum_of_its_members() -> None:
    x, labels = torch.randn(20, 12, dtype=torch.float64), torch.randint(9, (20,))
    loss = narrow(DREML, losses.create("dreml", num_classes=9, dim=12, members=3, meta_classes=4)).double()
    expected = 0.0
    for part, grouping, piece in zip(loss.parts, loss.groupings, x.chunk(3, 1), strict=True):
        alone = losses.create("proxy_nca", num_classes=4, dim=4).double()
        alone.load_state_dict(part.state_dict())
        expected = expected + alone(piece, grouping[labels])
    torch.testing.assert_close(loss(x, labels), expected)


def test_members_do_not_reach_each_other() -> None:
    x = torch.randn(20, 12, dtype=torch.float64, requires_grad=True)
    loss = narrow(DREML, losses.create("dreml", num_classes=9, dim=12, members=3, meta_classes=4)).double()
    labels = torch.randint(9, (20,))
    (grad,) = torch.autograd.grad(loss(x, labels), x)
    for i, (piece, slope) in enumerate(zip(x.detach().chunk(3, 1), grad.chunk(3, 1), strict=True)):
        piece = piece.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(loss.member(i)(piece, labels), piece)[0], slope)


@pytest.mark.parametrize("base", ["multi_similarity", "cosface", "triplet", "logits"])
def test_any_loss_can_be_the_base(base: str) -> None:
    loss = losses.create("dreml", num_classes=9, dim=12, members=3, meta_classes=4, base=base)
    value = loss(torch.randn(20, 12, requires_grad=True), torch.randint(9, (20,)))
    value.backward()
    assert bool(value.isfinite())


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"dim must be a multiple of members.*10 and 3"):
        losses.create("dreml", num_classes=9, dim=10, members=3)
    with pytest.raises(InputError, match="one dim for each meta-class"):
        losses.create("dreml", num_classes=9, dim=12, members=3, meta_classes=5, base="logits")
    with pytest.raises(InputError, match="embeddings must have dim = 12 columns; got 8"):
        losses.create("dreml", num_classes=9, dim=12, members=3)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1]))


def test_embeddings_are_joined_at_length_one() -> None:
    members = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 5)]
    x = torch.randn(7, 4)
    joined = Ensemble(members)(x)
    assert joined.shape == (7, 8)
    torch.testing.assert_close(joined[:, :3].norm(dim=1), torch.ones(7))
    torch.testing.assert_close(joined[:, 3:], torch.nn.functional.normalize(members[1](x)))


# --------------------------------------------------------------------------------------------------------- training


def test_groupings_depend_on_the_runs_seed() -> None:
    """Otherwise an interval over seeds leaves out the method's own randomness; all members of a run agree on them."""

    def groupings(**changes: Any) -> torch.Tensor:
        return narrow(DREML, build.build_loss(quick(**changes), 40)).groupings

    assert not torch.equal(groupings(seed=0), groupings(seed=1))
    assert torch.equal(groupings(seed=1, member=0), groupings(seed=1, member=1))
    fixed: Any = {"method": {"name": "dreml", "params": {"members": 2, "meta_classes": 6, "seed": 7}}}
    assert torch.equal(groupings(seed=0, **fixed), groupings(seed=1, **fixed))


def test_members_share_what_is_counted_in_steps(tmp_path: Path) -> None:
    optimizer = {"warmup_steps": 6, "frozen_steps": 4, "schedule": "step", "decay_every": 4}
    train(quick(optimizer=optimizer), tmp_path)
    member = load_config(RunConfig, tmp_path / "member-00" / "config.toml").optimizer
    assert (member.warmup_steps, member.frozen_steps, member.decay_every) == (3, 2, 2)


def test_members_train_and_are_joined(tmp_path: Path) -> None:
    result = train(quick(), tmp_path)
    assert result["method"] == "dreml"
    members = [RunFolder(tmp_path / f"member-{i:02d}") for i in range(2)]
    assert [m.result["steps"] for m in members if m.result] == [4, 4]  # the run's steps are shared
    weights = [m.weights() for m in members]
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])
    joined = RunFolder(tmp_path).weights()
    assert torch.equal(joined["members.1.head.weight"], weights[1]["head.weight"])
    assert joined["members.0.head.weight"].shape[0] == 8
    assert train(quick(), tmp_path) == result


def test_an_interrupted_ensemble_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = train(quick(), tmp_path / "whole")
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == 6  # in the second member

    with pytest.raises(Interrupted):
        train(quick(), tmp_path / "parts", stop=stop)
    assert train(quick(), tmp_path / "parts")["test"] == whole["test"]


@pytest.mark.programs
def test_processes_share_the_members(tmp_path: Path) -> None:
    """Two at once on one folder: both end, and the result is that of one process alone."""
    folders = [tmp_path / "alone", tmp_path / "shared", tmp_path / "shared"]
    workers = [forks().Process(target=train, args=(quick(), folder)) for folder in folders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    alone, together = (RunFolder(folder).result for folder in folders[:2])
    assert alone is not None
    assert together is not None
    assert together["test"] == alone["test"]


def test_one_member_can_be_trained_alone(tmp_path: Path) -> None:
    result = train(quick(member=1), tmp_path)
    assert result["steps"] == 8
    with pytest.raises(InputError, match="dreml has no member 2"):
        train(quick(member=2), tmp_path / "none")
    with pytest.raises(InputError, match="member is for ensembles"):
        train(quick(method={"name": "triplet"}, member=0), tmp_path / "none")
