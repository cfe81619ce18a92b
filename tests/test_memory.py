"""Cross-batch memory: what it compares, overwrites and saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nearfield import CrossBatchMemory, losses
from nearfield.errors import InputError


def batch(seed: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.requires_grad_(), torch.arange(rows) % 3


def test_value_and_gradient_are_those_of_batch_and_queue() -> None:
    loss = losses.create("multi_similarity", mine=False)
    memory = CrossBatchMemory(loss, size=9, dim=4, weight=0.5).double()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for seed in range(4):
        x, y = batch(seed)
        value = memory(x, y)
        expected = loss(x, y)
        if seen:
            known = torch.cat([s[0].detach() for s in seen])[-9:], torch.cat([s[1] for s in seen])[-9:]
            expected = expected + 0.5 * loss(x, y, *known)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))
        seen.append((x, y))
    assert int(memory.filled) == 9


def test_state_dict_continues_identically() -> None:
    first = CrossBatchMemory(losses.create("contrastive"), size=10, dim=4).double()
    for seed in range(3):
        first(*batch(seed))
    second = CrossBatchMemory(losses.create("contrastive"), size=10, dim=4).double()
    second.load_state_dict(first.state_dict())
    for seed in range(3, 6):
        assert torch.equal(first(*batch(seed)), second(*batch(seed)))


def test_evaluation_remembers_nothing_and_start_waits() -> None:
    memory = CrossBatchMemory(losses.create("binomial"), size=10, dim=4, start=2).double()
    memory.eval()
    memory(*batch(0))
    assert int(memory.filled) == 0
    memory.train()
    plain = losses.create("binomial")
    for seed in range(2):
        assert torch.equal(memory(*batch(seed)), plain(*batch(seed)))
    assert not torch.equal(memory(*batch(2)), plain(*batch(2)))


def test_a_batch_larger_than_the_queue() -> None:
    memory = CrossBatchMemory(losses.create("binomial"), size=4, dim=4).double()
    x, y = batch(0, rows=6)
    memory(x, y)
    assert torch.equal(memory.memory, x.detach()[-4:])
    assert torch.equal(memory.memory_labels, y[-4:])


def test_losses_without_references_are_refused() -> None:
    with pytest.raises(InputError, match="must compare with references"):
        CrossBatchMemory(losses.create("lifted"), size=4, dim=4)
    with pytest.raises(InputError, match="must compare with references"):
        CrossBatchMemory(losses.create("proxy_softmax", num_classes=3, dim=4), size=4, dim=4)
    with pytest.raises(InputError, match="size must be at least 1; got 0"):
        CrossBatchMemory(losses.create("binomial"), size=0, dim=4)
    hostile: list[dict[str, Any]] = [{"size": "9"}, {"dim": 2.5}, {"weight": float("nan")}, {"start": -1}]
    for wrong in hostile:
        with pytest.raises(InputError, match=rf"CrossBatchMemory: {next(iter(wrong))} must"):
            CrossBatchMemory(losses.create("binomial"), **{"size": 9, "dim": 4, **wrong})
