"""No loss waits for an accelerator, unless its description says so; and none mixes devices up.

No GPU is needed: embeddings and parameters are fake tensors on a device that is not there, labels are real ones on the
CPU. (Not CUDA: torch without CUDA cannot index fake CUDA tensors, nor record their graph.) An operation whose result
depends on data that only the device has (`item`, `nonzero`, boolean indexing, `unique`) cannot be computed by a fake
tensor and raises; what else waits, copies to the CPU and copies that block, is counted.
Axes: N items, D dims, C classes.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from test_contract import MEMBERS, make
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from nearfield import losses
from nearfield.losses.memory import CrossBatchMemory
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.pairs.measures import squared_distances
from nearfield.pairs.mining import MINERS

N, D = 24, 8
DEVICE = "accel"
_setup_privateuseone_for_python_backend(DEVICE)
PRETENDED = torch.get_device_module(DEVICE)  # stays for the tests after these, some of which fork the random state
PRETENDED.get_amp_supported_dtype = lambda: [torch.bfloat16]
PRETENDED.get_rng_state = lambda device=None: torch.zeros(0, dtype=torch.uint8)
PRETENDED.set_rng_state = lambda state, device=None: None
LABELS = torch.arange(N) % 6
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
ONLY_WITH_A_SETTING = {"hyperbolic"}  # their description names a synchronisation that the default does not need
WAITS = (DataDependentOutputException, DynamicOutputShapeException)


class Accelerator(TorchDispatchMode):
    """Runs what concerns the device on fake tensors, everything else as it is, and notes what would wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        there = [x for x in tensors if x.device.type == DEVICE]
        target = torch.device(kwargs.get("device") or "cpu").type if "device" in kwargs else None
        if not there and target != DEVICE:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        self.calls += 1
        self._note(func, args, kwargs, tensors, target)
        args, kwargs = tree_map_only(Tensor, self._faked, (args, kwargs))
        return func(*args, **kwargs)

    def _faked(self, x: Tensor) -> Tensor:
        return x if isinstance(x, FakeTensor) else self.fake.from_tensor(x)

    def _note(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], target: str | None) -> None:
        if func in COPIES:
            place = target or tensors[0].device.type
            blocks = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            if any(x.device.type != place for x in tensors) and (place == "cpu" or blocks):
                self.waits.append(f"{func} to {place}")
        elif any(x.device.type == "cpu" and x.ndim for x in tensors):
            self.waits.append(f"{func} of both devices")
        elif func is torch.ops.aten.bincount.default:
            self.waits.append(f"{func}, which looks for the largest")


def moved(module: nn.Module, mode: Accelerator) -> nn.Module:
    """The module with fake parameters and buffers on the device; what a module keeps on the CPU stays there."""
    with mode.fake:
        for part in module.modules():
            stays = ("memory_labels", "cursor", "filled", "calls") if isinstance(part, CrossBatchMemory) else ()
            both: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for held in both:
                for name, x in held.items():
                    if x is not None and name not in stays:
                        new = torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
                        held[name] = nn.Parameter(new) if isinstance(x, nn.Parameter) else new
    return module


def watched(loss: nn.Module, labels: Tensor = LABELS, mode: Accelerator | None = None) -> Accelerator:
    """Run two steps, forward and backward."""
    mode = mode or Accelerator()
    loss = moved(loss, mode)
    with mode.fake:
        x = torch.empty(len(labels), D, dtype=torch.float64, device=DEVICE, requires_grad=True)
    with mode.fake, mode:
        for _ in range(2):
            value = loss(x, labels)
            value.backward()
    assert x.grad is not None
    assert value.device.type == x.grad.device.type == DEVICE
    assert mode.calls > 20
    return mode


def says_so(name: str) -> bool:
    """Whether the description names a synchronisation."""
    return re.search(r"synchronisation\s+with\s+an\s+accelerator", losses.method(name).idea) is not None


@pytest.mark.parametrize("member", MEMBERS)
def test_a_loss_waits_for_the_device_only_if_it_says_so(member: str) -> None:
    try:
        waits = watched(make(member)).waits
    except WAITS as error:
        waits = [repr(error)]
    except RuntimeError as error:
        if "numpy()" not in str(error):  # values that NumPy reads; a fake tensor has none
            raise
        waits = [repr(error)]
    assert bool(waits) == (says_so(MEMBERS[member][0]) and member not in ONLY_WITH_A_SETTING), waits


@pytest.mark.parametrize("member", ["multi_similarity", "triplet semihard", "npairs", "histogram", "proxy_anchor"])
def test_incomplete_batches_do_not_wait_either(member: str) -> None:
    """Classes of different sizes, one without positives."""
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
    assert not watched(make(member), labels).waits


@pytest.mark.parametrize("miner", MINERS)
def test_miners_do_not_wait(miner: str) -> None:
    assert not watched(make("contrastive", miner=miner)).waits


def test_a_memory_does_not_wait() -> None:
    loss = make("multi_similarity")
    assert not watched(CrossBatchMemory(loss, 2 * N, D)).waits


def test_sampled_classes_are_fetched() -> None:
    assert "synchronisation with an accelerator" in (ProxyLoss.__doc__ or "")
    mode = Accelerator()
    with pytest.raises(WAITS):
        watched(make("cosface", sample=8), mode=mode)
    assert mode.waits == ["aten._to_copy.default to cpu"]


@pytest.mark.parametrize("call", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x[x > 0], torch.unique])
def test_the_watch_sees_what_waits(call: Any) -> None:
    mode = Accelerator()
    with mode.fake:
        x = torch.empty(4, 3, device=DEVICE)
    with pytest.raises(WAITS), mode.fake, mode:
        call(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cpu(),
        lambda x: torch.arange(3).to(x.device),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.new_zeros(3).copy_(torch.arange(3)),
    ],
)
def test_the_watch_sees_copies_that_block(call: Any) -> None:
    mode = Accelerator()
    with mode.fake:
        x = torch.empty(4, 3, device=DEVICE)
    with mode.fake, mode:
        call(x)
    assert len(mode.waits) == 1


def test_distances_on_an_accelerator_are_those_on_a_cpu() -> None:
    """There all are computed directly; close pairs and duplicates are included."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(20, D, generator=generator)
    r = torch.cat([q + 1e-4 * torch.randn(20, D, generator=generator), q[:3], torch.zeros(1, D)])
    expected = squared_distances(q, r, q.square().sum(1, keepdim=True), r.square().sum(1), None)
    direct = torch.cdist(q, r, compute_mode="donot_use_mm_for_euclid_dist").square_()
    torch.testing.assert_close(direct, expected, rtol=1e-4, atol=1e-12)
    torch.testing.assert_close(direct.double(), (q.double()[:, None] - r.double()).square().sum(2), rtol=1e-5, atol=0)
