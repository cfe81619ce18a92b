"""What each rank does in test_sharding.py, forked there by `launch`.

The jobs of one process and of many are the same functions; each rank reports its rows of what is split.
Axes: N rows of all ranks, D dims, C classes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from distributed_worker import share
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import RunConfig, build_config
from nearfield.losses.proxy_loss import ProxyLoss, split_parameters
from nearfield.pairs import pair_weights
from nearfield.training.checkpoint import flat_weights
from nearfield.training.distributed import Place, of_all_ranks, process_group, sum_gradients
from nearfield.training.loop import Interrupted, train
from nearfield.training.run_folder import Saved
from nearfield.training.sharding import gather_split, load_split, share_overflow, split_of

N, D = 24, 8
CONFIG = build_config(
    RunConfig,
    {
        "method": {"name": "sub_center_arcface"},
        "data": {"name": "digits", "val_fraction": 0.4},
        "sampler": {"batch_size": 12},
        "model": {"width": 4, "dim": 8, "freeze_bn": True},
        "shard_proxies": True,
        "precision": "float32",
        "steps": 8,
        "eval_every": 4,
    },
)
COUNTS = (3, 7, 16)  # of classes: fewer than ranks, uneven, even
Found = dict[str, Tensor]
NAMES = [n for n in losses.names() if issubclass(losses.method(n).build, ProxyLoss) and losses.method(n).shards]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NAMES},
    "proxy_softmax smooth": ("proxy_softmax", {"label_smoothing": 0.1}),
    "proxy_nca probabilistic": ("proxy_nca", {"form": "probabilistic", "label_smoothing": 0.1}),
    "arcface blocks of 5": ("arcface", {"block_rows": 5}),
    "soft_triple raw": ("soft_triple", {"normalize": False}),
    "proxy_softmax mined": ("proxy_softmax", {"miner": "multi_similarity"}),  # sees whole rows: they are gathered
    **{f"{name} sampled": (name, {"sample": 3}) for name in NAMES},
    **{f"{name} sparse": (name, {"sample": 3, "sparse": True}) for name in ("cosface", "soft_triple")},
}


def make(variant: str, classes: int) -> tuple[nn.Module, nn.Module]:
    """A network and a loss, in float64."""
    name, params = VARIANTS[variant]
    torch.manual_seed(0)
    network = nn.Linear(10, D)
    return network.double(), losses.create(name, num_classes=classes, dim=D, shard=True, **params).double()


def batch(classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (N,), generator=generator)
    return torch.randn(N, 10, generator=generator, dtype=torch.float64), labels


def one_step(here: Place, variant: str, classes: int) -> Found:
    """Value, gradients and pair weights; the second of two steps, so that draws differ from the first."""
    (network, loss), (images, labels) = make(variant, classes), batch(classes)
    rows = share(here)
    of_all_ranks(loss)(network(images[rows]), labels[rows]).backward()
    network.zero_grad()
    loss.zero_grad()
    value = of_all_ranks(loss)(network(images[rows]), labels[rows])
    value.backward()
    sum_gradients(network.parameters(), besides=loss.parameters())
    found = {f"network.{k}": p.grad for k, p in network.named_parameters()}
    found |= {f"{'rows' if k in split_parameters(loss) else 'loss'}.{k}": p.grad for k, p in loss.named_parameters()}
    found |= {"start": next(loss.parameters()).detach()}
    if "sampled" not in variant and "sparse" not in variant:
        assert isinstance(loss, ProxyLoss)
        with torch.no_grad():
            found["weights"] = pair_weights(loss, network(images), labels)
    dense = {k: (g.to_dense() if g.is_sparse else g) for k, g in found.items() if g is not None}
    return {"value": value.detach(), **dense}


def not_finite(here: Place) -> Found:
    """One rank's proxies hold a NaN: the value is NaN everywhere, and nobody waits for ever."""
    (network, loss), (images, labels) = make("arcface", 7), batch(7)
    assert isinstance(loss, ProxyLoss)
    with torch.no_grad():
        if here.rank == here.world_size - 1:
            loss.proxies[-1, 0] = torch.nan
    value = of_all_ranks(loss)(network(images[share(here)]), labels[share(here)])
    value.backward()
    return {"value": value.detach(), "grad": next(network.parameters()).grad}  # type: ignore[dict-item]


def overflow(here: Place) -> Found:
    """A scaled gradient overflows on the last rank only: how far each rank's scaler lets the optimizer move."""
    _, loss = make("cosface", 16)
    (proxies,) = loss.parameters()
    optimizer, scaler = torch.optim.SGD([proxies], lr=0.1), torch.amp.GradScaler("cpu")
    moved = []
    for bad in (False, True):
        start = proxies.detach().clone()
        scaler.scale(proxies.sum()).backward()
        assert proxies.grad is not None
        if bad and here.rank == here.world_size - 1:
            proxies.grad[-1, 0] = torch.inf
        share_overflow(split_of({"loss": loss}, optimizer))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved.append((proxies.detach() - start).abs().max())
    return {"moved": torch.stack(moved)}


def trained(here: Place, start: Saved | None, steps: int) -> tuple[Found, Saved]:
    """Steps of Adam: the losses, and the whole state on rank 0, from which any number of ranks can continue."""
    (network, loss), (images, labels) = make("soft_triple", 7), batch(7)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=0.05)
    split = split_of({"loss": loss}, optimizer)
    if saved := load_split(split, lambda: start):
        network.load_state_dict(saved.best)
        loss.load_state_dict({name.removeprefix("loss."): value for name, value in saved.weights.items()})
        optimizer.load_state_dict(saved.state["optimizer"])
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = of_all_ranks(loss)(network(images[share(here)]), labels[share(here)])
        value.backward()
        sum_gradients(network.parameters(), besides=loss.parameters())
        optimizer.step()
        values.append(value.detach())
    weights, state = flat_weights({"loss": loss}), optimizer.state_dict()
    gather_split(split, weights, state)
    return {"values": torch.stack(values)}, Saved(weights, network.state_dict(), {"optimizer": state})


def everything(here: Place) -> dict[str, Any]:
    """All that one process and several do alike."""
    done = {f"{name} {classes}": one_step(here, name, classes) for name in VARIANTS for classes in COUNTS}
    return {**done, "not finite": not_finite(here), "overflow": overflow(here)}


def run(folder: Path, stop_after: int) -> None:
    """Train a classifier with its proxies split, in the folder of a run, for some steps or to its end."""
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps >= stop_after

    with suppress(Interrupted):
        train(CONFIG, folder, stop=stop, test=False)


def main(folder: str, steps: str = "") -> None:
    """Do it all, going on from the state in the folder, or some steps of a run; and write down what came out."""
    torch.set_num_threads(1)
    if steps:
        run(Path(folder) / "run", int(steps))
        torch.save({}, Path(folder) / f"{os.environ['RANK']}.pt")
        return
    with process_group() as here:
        done = everything(here)
        start = None if here.rank else Saved(*torch.load(Path(folder) / "start.pt"))
        done["trained"], saved = trained(here, start, 3)
        torch.save({**done, "saved": tuple(saved)}, Path(folder) / f"{here.rank}.pt")
