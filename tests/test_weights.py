"""General Pair Weighting, measured: the paper's Table 1, curves and plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nearfield import losses
from nearfield.cli.main import main
from nearfield.errors import InputError
from nearfield.inspection.pair_weighting import plot_weights, similarity_types, table_loss, weight_curves, weights_of
from nearfield.pairs import PairLoss

TABLE_1 = {  # Wang et al., CVPR 2019
    "contrastive": "S",
    "binomial": "S",
    "triplet": "P",
    "histogram": "P",
    "npairs": "N",
    "lifted_generalized": "N",
    "bin_lifted": "SN",
    "nca": "PN",
    "multi_similarity": "SPN",
}
EQUATIONS = {  # what the equations of later methods say
    "dcl": "N",
    "epshn": "PN",
    "recall_at_k": "PN",
    "roadmap": "SPN",
    "sct": "SPN",
    "sigmoid": "S",
    "sincere": "PN",
    "sup_ap": "PN",
    "tcm": "SPN",
    "tuplet_margin": "SPN",
}


def build(name: str, **params: object) -> PairLoss:
    loss = table_loss(name, params)
    assert loss is not None
    return loss


@pytest.mark.parametrize("name", sorted(TABLE_1))
def test_table_1_by_measurement(name: str) -> None:
    assert losses.method(name).similarities == TABLE_1[name]
    measured = similarity_types(build(name), trials=12)
    if losses.method(name).disagreement:
        assert measured == "PN"  # N-pairs: the paper omits the positive in the softmax
    else:
        assert measured == TABLE_1[name]


def test_the_table_is_of_losses_over_pairs_of_a_batch() -> None:
    assert table_loss("proxy_softmax") is None
    assert table_loss("npairs_angular") is None
    claimed = {name: losses.method(name).similarities for name in losses.names() if losses.method(name).similarities}
    assert claimed == TABLE_1 | EQUATIONS


@pytest.mark.parametrize("name", sorted(EQUATIONS))
def test_later_methods_depend_on_what_their_equations_say(name: str) -> None:
    assert similarity_types(build(name), trials=12) == EQUATIONS[name]


def test_a_neighbourhood_has_the_cosines_it_was_asked_for() -> None:
    pos, neg = torch.tensor([0.8, 0.2]), torch.tensor([0.9, -0.5, 0.1])
    w_pos, w_neg = weights_of(build("contrastive", lam=0.5), pos, neg)
    assert w_pos.tolist() == [-1, -1]
    assert w_neg.tolist() == [1, 0, 0]
    w_pos, _ = weights_of(build("binomial"), pos, neg)
    expected = -2.0 / 2 * torch.sigmoid(2 * (0.5 - pos.double()))
    torch.testing.assert_close(w_pos, expected)


def test_curves_have_the_signs_of_pull_and_push() -> None:
    curves = weight_curves(build("multi_similarity", mine=False), points=21)
    assert all((w >= 0).all() for _, _, w in curves["negative"])
    assert all((w <= 0).all() for _, _, w in curves["positive"])
    assert all(w[-1] > w[0] for _, _, w in curves["negative"])


def test_plot_is_an_svg_and_repeatable(tmp_path: Path) -> None:
    x, y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) // 3
    for name in ("a.svg", "b.svg"):
        plot_weights(build("binomial"), "binomial", x, y, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(InputError, match=r"must name a file that ends in .svg"):
        plot_weights(build("binomial"), "binomial", x, y, tmp_path / "a.png")


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["weights", "binomial", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"loss": "binomial", "measured": "S", "paper": "S", "note": ""}]
    assert main(["weights", "binomial", "--set", "beta=10", "--plot", str(tmp_path / "w.svg")]) == 0
    assert (tmp_path / "w.svg").exists()
    assert main(["weights", "proxy_softmax"]) == 2
