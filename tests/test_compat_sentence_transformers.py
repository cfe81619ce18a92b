"""The adapter for sentence-transformers, around a stand-in for its model: features in, "sentence_embedding" out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from narrow import grad_of
from torch import Tensor, nn

from nearfield import InputError, losses
from nearfield.compat.sentence_transformers import OneClassWarning, SentenceLoss, m_per_class
from nearfield.samplers import MPerClassSampler
from nearfield.training.doctor import WINDOW, Doctor


class Embedder(nn.Module):
    """The mean of word vectors, as sentence-transformers calls a model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, dtype=torch.float64)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": self.words(features["input_ids"]).mean(1)}


class Table:
    """What the samplers of sentence-transformers ask of a dataset."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def sentences(rows: int, seed: int = 0) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(50, (rows, 4), generator=torch.Generator().manual_seed(seed))}


@pytest.mark.parametrize("name", ["multi_similarity", "triplet", "nt_xent", "contrastive"])
def test_sentences_with_labels(name: str) -> None:
    torch.manual_seed(0)
    model, labels = Embedder(), torch.arange(4).repeat(4)
    loss = SentenceLoss(model, losses.create(name))
    value = loss([sentences(16)], labels)
    value.backward()
    found = grad_of(model.words.weight).clone()
    model.zero_grad()
    expected = losses.create(name)(model(sentences(16))["sentence_embedding"], labels)
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(found, grad_of(model.words.weight))
    assert found.abs().max() > 0
    assert loss.last["anchors"] == 16
    assert loss.get_config_dict()["loss"] == type(loss.loss).__name__
    assert {id(p) for p in model.parameters()} <= {id(p) for p in loss.parameters()}


def test_pairs_and_triplets_of_sentences() -> None:
    """NT-Xent of (anchor, positive) is the in-batch softmax; negatives of a third column are classes of their own."""
    torch.manual_seed(0)
    model = Embedder()
    a, p, n = (sentences(5, seed) for seed in range(3))
    x, y, z = (nn.functional.normalize(model(f)["sentence_embedding"], dim=1) for f in (a, p, n))
    for columns, rows in (([a, p], torch.cat([x, y])), ([a, p, n], torch.cat([x, y, z]))):
        s = rows @ rows.T / 0.1
        s.fill_diagonal_(-torch.inf)
        partner = torch.arange(10).roll(5)
        expected = (s[:10].logsumexp(1) - s[torch.arange(10), partner]).mean()
        loss = SentenceLoss(model, losses.create("nt_xent", temperature=0.1))
        torch.testing.assert_close(loss(columns, torch.zeros(5)), expected)
        torch.testing.assert_close(loss(columns), expected)


def test_one_label_in_a_batch_is_said() -> None:
    model = Embedder()
    loss, labels = SentenceLoss(model, losses.create("multi_similarity")), torch.full((8,), 3)
    with pytest.warns(OneClassWarning, match=r"all 8 sentences .*m_per_class"):
        value = loss([sentences(8)], labels)
    assert value == 0
    doctor = Doctor(loss, torch.optim.SGD(model.parameters(), 0.1))
    found = []
    for step in range(WINDOW):
        with pytest.warns(OneClassWarning):
            value = loss([sentences(8)], labels)
        found += doctor.look(step, model(sentences(8))["sentence_embedding"], labels, float(value.detach()))
    assert "one_class" in {finding.code for finding in found}
    proxies = SentenceLoss(model, losses.create("proxy_softmax", num_classes=4, dim=8))
    assert proxies([sentences(8)], labels) > 0  # compares with all classes, and is silent


@pytest.mark.parametrize("names", [["label"], None])
def test_batches_have_positives_and_negatives(names: list[str] | None) -> None:
    data = Table(sentence=[""] * 60, label=[f"topic {i % 5}" for i in range(60)])
    sampler = m_per_class(4)(data, batch_size=12, drop_last=False, valid_label_columns=names, seed=3)
    labels = data["label"]
    assert len(sampler) == 5
    epochs = [list(sampler), list(sampler)]
    for batch in epochs[0] + epochs[1]:
        counts = sorted(labels[i] for i in batch)
        assert len(batch) == 12
        assert len(set(counts)) == 3
        assert all(counts.count(label) == 4 for label in counts)
    assert epochs[0] != epochs[1]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]
    seeded = m_per_class(4)(data, 12, True, names, torch.Generator().manual_seed(3), 0)
    assert list(seeded) == epochs[0]
    assert isinstance(sampler.batches, MPerClassSampler)


def test_what_cannot_be_called() -> None:
    loss = SentenceLoss(Embedder(), losses.create("triplet"))
    with pytest.raises(InputError, match="labels must be given"):
        loss([sentences(4)])
    with pytest.raises(InputError, match="at least one column"):
        loss([])
    with pytest.raises(InputError, match=r"column of labels.*got sentence"):
        m_per_class()(Table(sentence=["a"]), 4)
