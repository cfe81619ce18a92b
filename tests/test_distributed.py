"""Several processes against one: the same values, gradients and weights, for every method."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from distributed_worker import Found, everything, main, one_step, share
from programs import forks, free_port
from torch import Tensor, nn

from nearfield import losses
from nearfield.errors import InputError
from nearfield.training.distributed import (
    Place,
    broadcast,
    gather,
    gathered,
    is_distributed,
    of_all_ranks,
    process_group,
    sum_gradients,
)

pytestmark = pytest.mark.programs

WORKER = Path(__file__).with_name("distributed_worker.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def launch(ranks: int, folder: Path, *words: str, main: Callable[..., None] = main) -> list[dict[str, Found]]:
    """What each rank found; fails if one of them did not end well.

    They are forked from a process that has loaded the library, which takes longer than what they do.
    """
    port = free_port()
    started = [
        forks().Process(target=as_rank, args=(rank, ranks, port, main, str(folder), *words)) for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        process.kill()
    assert [process.exitcode for process in started] == [0] * ranks, [p.read_text() for p in folder.glob("*.txt")]
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def as_rank(rank: int, ranks: int, port: int, main: Callable[..., None], folder: str, *words: str) -> None:
    """Call `main` as torchrun would start it."""
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in here.items()})
    warnings.simplefilter("ignore")
    try:
        main(folder, *words)
    except BaseException:
        Path(folder, f"{rank}.txt").write_text(traceback.format_exc())
        raise


@pytest.fixture(scope="module")
def expected() -> dict[str, Found]:
    return everything(Place())


@pytest.fixture(scope="module", params=[2, 4], ids=["two ranks", "four ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    return launch(request.param, tmp_path_factory.mktemp("ranks"))


def close(found: Found, expected: Found) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert (found[name] - x).norm() <= 1e-12 * max(float(x.norm()), 1e-3), name


@pytest.mark.parametrize("name", losses.names())
def test_every_rank_has_the_gradients_of_one_process(
    name: str, ranks: list[dict[str, Found]], expected: dict[str, Found]
) -> None:
    for found in ranks:
        close(found[name], expected[name])
    for key, x in ranks[0][name].items():  # not by a bit may ranks drift apart
        assert all(torch.equal(found[name][key], x) for found in ranks), key


@pytest.mark.parametrize("way", ["in chunks", "uneven"])
def test_shares_in_chunks_and_of_unequal_length_are_exact_too(
    way: str, ranks: list[dict[str, Found]], expected: dict[str, Found]
) -> None:
    names = [key.removesuffix(way).strip() for key in expected if key.endswith(way)]
    assert names
    for name in names:
        for found in ranks:
            close(found[f"{name} {way}"], expected[name])


@pytest.mark.parametrize("job", ["shared head", "several steps"])
def test_training_is_that_of_one_process(job: str, ranks: list[dict[str, Found]], expected: dict[str, Found]) -> None:
    for found in ranks:
        close(found[job], expected[job])


def test_a_sum_takes_missing_gradients_as_zero(ranks: list[dict[str, Found]]) -> None:
    for found in (rank["partly used"] for rank in ranks):
        assert found.keys() == {"all", "one", "half"}  # what nobody used has none
        assert torch.equal(found["all"], torch.full((2, 3), float(len(ranks))))
        assert torch.equal(found["one"], torch.ones(2, 3))
        assert torch.equal(found["half"], torch.full((3,), float(len(ranks)), dtype=torch.float16))


def test_the_layout_in_memory_does_not_matter(ranks: list[dict[str, Found]]) -> None:
    for found in (rank["other layout"] for rank in ranks):
        assert torch.equal(found["weight"], torch.arange(6.0).view(2, 3).T)
        assert torch.equal(found["grad"], len(ranks) * torch.arange(6.0).view(3, 2))


def test_the_gradient_is_that_of_the_mean_over_ranks(ranks: list[dict[str, Found]]) -> None:
    """Rank r goes backward from r + 1 times the sum: the mean of 1 ... K for each entry."""
    mean = (len(ranks) + 1) / 2
    for rank, found in enumerate(ranks):
        assert torch.equal(found["different losses"]["grad"], torch.full((2 + rank, 3), mean, dtype=torch.float64))


def test_shares_are_the_batch() -> None:
    for unequal in (False, True):
        rows = [torch.arange(24)[share(Place(rank, 4), unequal)] for rank in range(4)]
        assert torch.equal(torch.cat(rows), torch.arange(24))


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    layer, labels = nn.Linear(3, 2), torch.arange(4)
    x = torch.randn(4, 3)
    with process_group() as here:
        assert (here.rank, here.world_size) == (0, 1)
        assert not is_distributed()
        assert gather(x) is x
        assert gathered(labels) is labels
        broadcast(layer)
        value = of_all_ranks(lambda a, b: a.sum() + b.sum())(layer(x), labels)
        value.backward()
        before: list[Tensor] = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        sum_gradients(layer.parameters())
    for p, grad in zip(layer.parameters(), before, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, grad)


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(InputError, match="not LOCAL_RANK, MASTER_ADDR, MASTER_PORT; start with torchrun"),
        process_group(),
    ):
        pass


@pytest.mark.slow
def test_repeated_launches_end_well(tmp_path: Path) -> None:
    expected = one_step("proxy_anchor", share(Place()))
    for _ in range(10):
        command = [*TORCHRUN, "2", str(WORKER), str(tmp_path), "proxy_anchor"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        for found in (torch.load(tmp_path / f"{rank}.pt") for rank in range(2)):
            close(found["proxy_anchor"], expected)


THREADS_LEFT = """
import os, pathlib, torch
from nearfield.training.distributed import process_group

with process_group():
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    torch.distributed.all_reduce(torch.ones(1))
tasks = pathlib.Path("/proc/self/task").iterdir()
print([name for name in ((task / "comm").read_text() for task in tasks) if "gloo" in name])
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_no_thread_outlives_the_group() -> None:
    """One that did would abort a process now and then at its exit."""
    here = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", THREADS_LEFT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **here})
    assert done.stdout == "[]\n"
