"""Proxies split over processes against one process that holds them all: values, gradients, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sharding_worker import COUNTS, NAMES, VARIANTS, Found, everything, main, run, trained
from test_distributed import launch

from nearfield import losses
from nearfield.config import RunConfig
from nearfield.errors import InputError
from nearfield.losses.proxy_loss import ProxyLoss, split_parameters
from nearfield.training.build import check_method
from nearfield.training.distributed import Place
from nearfield.training.run_folder import Saved

pytestmark = pytest.mark.programs

SPLIT = {"start": 0, "rows.proxies": 0, "weights": 1}  # axis along which the ranks' parts are joined


@pytest.fixture(scope="module")
def expected() -> dict[str, Found]:
    return everything(Place())


@pytest.fixture(scope="module", params=[2, 4], ids=["two ranks", "four ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(tuple(trained(Place(), None, 3)[1]), folder / "start.pt")
    return list(launch(request.param, folder, main=main))


@pytest.mark.parametrize("classes", COUNTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_split_proxies_give_what_one_process_gives(
    variant: str, classes: int, ranks: list[dict[str, Found]], expected: dict[str, Found]
) -> None:
    job = f"{variant} {classes}"
    one = {key.replace("loss.proxies", "rows.proxies"): x for key, x in expected[job].items()}
    for found in ranks:
        assert found[job].keys() == one.keys()
    for key, x in one.items():
        parts = [found[job][key] for found in ranks]
        if key in SPLIT:
            assert [len(part) for part in parts] != [len(x)] * len(parts) or SPLIT[key]
            together = torch.cat(parts, SPLIT[key])
        else:
            together = parts[0]
            assert all(torch.equal(part, together) for part in parts), key  # not by a bit may ranks drift apart
        assert together.shape == x.shape
        assert (together - x).norm() <= 1e-12 * max(float(x.norm()), 1e-3), key


def test_every_rank_holds_its_share(ranks: list[dict[str, Found]]) -> None:
    for classes in COUNTS:
        held = [len(found[f"cosface {classes}"]["start"]) for found in ranks]
        assert sum(held) == classes
        assert max(held) <= -(-classes // len(ranks))


def test_a_nan_of_one_rank_is_everybodys(ranks: list[dict[str, Found]]) -> None:
    for found in (rank["not finite"] for rank in ranks):
        assert found["value"].isnan()
        assert found["grad"].isnan().all()


def test_all_ranks_skip_a_step_whose_gradient_overflowed_on_one(ranks: list[dict[str, Found]]) -> None:
    for found in (rank["overflow"] for rank in ranks):
        assert found["moved"][0] > 0
        assert found["moved"][1] == 0


def test_a_checkpoint_fits_any_number_of_processes(ranks: list[dict[str, Any]]) -> None:
    """Three steps by one process, three by several, three by one: the nine steps of one process."""
    nine, _ = trained(Place(), None, 9)
    last, saved = trained(Place(), Saved(*ranks[0]["saved"]), 3)
    for found in ranks:
        values = torch.cat([nine["values"][:3], found["trained"]["values"], last["values"]])
        torch.testing.assert_close(values, nine["values"], rtol=1e-12, atol=0)
    assert len(saved.weights["loss.proxies"]) == 70


def test_a_run_is_resumed_by_another_number_of_processes(tmp_path: Path) -> None:
    """Three steps by one process, two by two, the rest by one, against one from the first step to the last."""
    alone, several = tmp_path / "alone", tmp_path / "several"
    run(alone / "run", 99)
    run(several / "run", 3)
    launch(2, several, "2", main=main)
    newest = sorted((several / "run").glob("checkpoint-*"))[-1]
    assert len(load_file(newest / "model.safetensors")["loss.proxies"]) == 3 * 3  # all rows: 3 classes of 3 centers
    run(several / "run", 99)
    found, expected = (load_file(folder / "run" / "model.safetensors") for folder in (several, alone))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)
    facts = json.loads((several / "run" / "environment.json").read_text())
    assert [facts["processes"], *(resumed.get("processes") for resumed in facts["resumed"])] == [1, 2]


def test_shard_proxies_needs_a_loss_with_proxies() -> None:
    with pytest.raises(InputError, match=r"`shard_proxies` requires a loss with proxies.*multi_similarity is not one"):
        check_method(RunConfig(shard_proxies=True))
    assert RunConfig(shard_proxies=False).digest() == RunConfig().digest()


def test_one_process_holds_all() -> None:
    loss = losses.create("proxy_softmax", num_classes=5, dim=3, shard=True)
    assert isinstance(loss, ProxyLoss)
    assert len(loss.proxies) == 5
    assert not split_parameters(loss)


def test_what_cannot_be_split_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="compile must be False with shard"):
        losses.create("cosface", num_classes=5, dim=3, shard=True, compile=True)
    monkeypatch.setattr(losses.method("cosface").build, "splits", False)
    assert not losses.method("cosface").shards
    with pytest.raises(InputError, match="shard must be False for CosFace"):
        losses.create("cosface", num_classes=5, dim=3, shard=True)
    with pytest.raises(InputError, match="no parameter 'shard'"):
        losses.create("multi_similarity", shard=True)


def test_all_proxy_losses_are_here() -> None:
    assert {"proxy_triplet", "proxy_anchor", "arcface", "soft_triple", "sub_center_arcface"} <= set(NAMES)
