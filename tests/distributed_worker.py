"""What each rank does in test_distributed.py: `torchrun distributed_worker.py FOLDER [METHOD]`.

The steps of one process and of many are the same functions, with all rows and with a share of them.
Axes: N rows of all ranks, D dims, C classes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.losses.relations import DRML
from nearfield.samplers import MPerClassSampler, ShardedSampler
from nearfield.training.chunks import backward_in_chunks
from nearfield.training.distributed import Place, broadcast, gather, of_all_ranks, process_group, sum_gradients

N, D, C = 24, 8, 6
KNOWN: dict[str, Any] = {"num_classes": C, "dim": D}
Found = dict[str, Tensor]


def make(name: str, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network and a loss, in float64; no last bias, as distances do not move with it and leave it only rounding."""
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, D, bias=False))
    return network.double(), losses.create(name, **{key: KNOWN[key] for key in needed}).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(N)[torch.randperm(N, generator=generator)] % C
    centres = torch.randn(C, 10, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(N, 10, generator=generator, dtype=torch.float64), labels


def found(value: Tensor, network: nn.Module, loss: nn.Module) -> Found:
    grads = {f"network.{k}": p.grad for k, p in network.named_parameters()}
    grads |= {f"loss.{k}": p.grad for k, p in loss.named_parameters()}
    return {"value": value.detach(), **{k: g for k, g in grads.items() if g is not None}}


def one_step(name: str, rows: slice, chunk: int = N) -> Found:
    """Value and gradients, as the optimiser sees them, from these rows of the batch."""
    (network, loss), (images, labels) = make(name), batch()
    value = backward_in_chunks(network, of_all_ranks(loss), images[rows], labels[rows], chunk)
    sum_gradients(network.parameters(), besides=loss.parameters())
    return found(value, network, loss)


def shared_head(rows: slice) -> Found:
    """The relational embedder is part of the loss and the head of the network at once."""
    (body, loss), (images, labels) = make("drml"), batch()
    assert isinstance(loss, DRML)
    network = nn.Sequential(body, loss.embedder)
    value = of_all_ranks(loss)(body(images[rows]), labels[rows])
    value.backward()
    sum_gradients(network.parameters(), besides=loss.parameters())
    return found(value, network, loss)


def several_steps(here: Place) -> Found:
    """An epoch of training with momentum from what rank 0 starts with: the weights, and the last value."""
    network, loss = make("proxy_anchor", seed=here.rank)
    broadcast(network)
    broadcast(loss)
    images, labels = batch()
    sampler = ShardedSampler(MPerClassSampler(labels.numpy(), 12, 4, seed=0), here.rank, here.world_size)
    weights = [*network.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    values = []
    for rows in map(torch.tensor, sampler):
        optimizer.zero_grad()
        value = of_all_ranks(loss)(network(images[rows]), labels[rows])
        value.backward()
        sum_gradients(network.parameters(), besides=loss.parameters())
        optimizer.step()
        values.append(value.detach())
    return {"values": torch.stack(values), **{str(i): w.detach() for i, w in enumerate(weights)}}


def partly_used(here: Place) -> Found:
    """Gradients where only the last rank used a parameter, and where none did."""
    weights = {name: nn.Parameter(torch.ones(2, 3)) for name in ("all", "one", "none")}
    weights["half"] = nn.Parameter(torch.ones(3, dtype=torch.float16))
    for name in ("all", "half", *(["one"] if here.rank == here.world_size - 1 else [])):
        weights[name].sum().backward()
    sum_gradients(weights.values())
    return {name: w.grad for name, w in weights.items() if w.grad is not None}


def other_layout(here: Place) -> Found:
    """A weight that lies transposed in memory, of rank 0 on all ranks, and the sum of its gradients."""
    layer = nn.Linear(2, 3, bias=False)
    layer.weight = nn.Parameter((torch.arange(6.0).view(2, 3) + 10 * here.rank).T)
    broadcast(layer)
    (layer.weight * torch.arange(6.0).view(3, 2)).sum().backward()
    sum_gradients(layer.parameters())
    assert layer.weight.grad is not None
    return {"weight": layer.weight.detach(), "grad": layer.weight.grad}


def mean_of_different_losses(here: Place) -> Found:
    """The gradient at this rank's rows of the mean of what ranks compute: rank r multiplies the rows' sum by r + 1."""
    x = torch.ones(2 + here.rank, 3, dtype=torch.float64, requires_grad=True)
    ((here.rank + 1) * gather(x.T.contiguous().T)).sum().backward()
    assert x.grad is not None
    return {"grad": x.grad}


def share(here: Place, unequal: bool = False) -> slice:
    """Contiguous rows of each rank; of unequal ones the first has one and the last the rest."""
    if unequal:
        return slice(here.rank, here.rank + 1 if here.rank < here.world_size - 1 else N)
    size = N // here.world_size
    return slice(here.rank * size, (here.rank + 1) * size)


def everything(here: Place) -> dict[str, Found]:
    """All that one process and several do alike."""
    rows, uneven = share(here), share(here, unequal=True)
    done = {name: one_step(name, rows) for name in losses.names()}
    done |= {f"{name} in chunks": one_step(name, rows, chunk=5) for name in ("fastap", "proxy_anchor", "drml")}
    done |= {f"{name} uneven": one_step(name, uneven) for name in ("multi_similarity", "proxy_nca")}
    return {**done, "shared head": shared_head(rows), "several steps": several_steps(here)}


def main(folder: str, method: str = "") -> None:
    """Do it all, or one step of one method, and write down what came out."""
    torch.set_num_threads(1)
    with process_group() as here:
        if method:
            done = {method: one_step(method, share(here))}
        else:
            done = everything(here)
            done |= {"partly used": partly_used(here), "other layout": other_layout(here)}
            done |= {"different losses": mean_of_different_losses(here)}
        torch.save(done, Path(folder) / f"{here.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
