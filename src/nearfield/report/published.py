"""Published scores on CUB-200-2011 for comparison with ours; percent in the tables, shares in what is returned.

From Fehervari et al., Unbiased Evaluation of Deep Metric Learning Algorithms, 2019, and from the supplement of Zheng et
al., Deep Relational Metric Learning, ICCV 2021, which follows the protocol of Musgrave et al., 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfield import losses
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.statistics import kendall_tau
from nearfield.bench.results import BenchResults, Part

UNBIASED_METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "recall@16", "nmi")
REALITY_METRICS = ("recall@1", "r_precision", "map@r")
UNBIASED = """
triplet               50.9 63.3 74.8 84.3 91.1 61.1 | 48.2 60.9 72.1 82.1 89.6 60.0
lifted                51.7 63.2 74.6 83.8 90.6 60.9 | 50.0 62.8 74.0 83.3 90.3 60.5
npairs                53.7 65.9 76.4 85.2 91.9 63.6 | 56.1 68.2 78.8 87.4 92.9 65.5
structured_clustering 56.4 67.8 78.2 86.5 92.2 64.0 |
margin                51.3 63.2 74.3 83.4 90.4 61.1 | 59.6 71.0 81.0 88.2 93.1 67.3
angular               53.2 66.2 76.4 85.5 91.5 62.8 | 59.1 71.6 81.2 88.2 93.2 66.3
prototypical          47.8 60.9 73.0 83.3 90.6 60.7 | 54.4 67.2 78.0 86.2 92.6 64.8
proxy_triplet         50.5 62.4 73.4 82.6 89.5 59.6 | 53.1 65.3 76.1 84.5 90.8 62.9
proxy_nca             54.6 66.5 77.0 85.7 91.7 63.2 | 58.1 70.0 79.1 86.3 91.8 64.1
proxy_softmax         58.3 70.4 80.5 88.6 93.4 64.0 | 63.5 74.3 82.6 89.7 94.1 69.5
ranked_list           51.4 64.0 74.5 84.2 90.1 61.8 | 50.2 62.7 73.6 83.1 89.6 58.5
dreml                 55.4 67.0 77.1 85.6 91.1 61.0 | 59.0 71.0 80.5 87.5 92.7 63.2
"""
REALITY = """
contrastive      67.2 .5 36.9 .3 26.2 .3 | 58.6 .5 31.5 .2 20.7 .2
proxy_nca        66.1 .3 35.5 .2 24.6 .2 | 58.3 .3 30.6 .1 19.7 .1
margin           65.5 .5 35.0 .2 24.1 .3 | 56.2 .4 29.5 .2 18.6 .2
proxy_softmax    65.4 .2 36.0 .2 25.2 .2 | 58.5 .2 31.7 .2 20.9 .2
arcface          67.1 .3 37.2 .2 26.4 .2 | 60.1 .2 32.3 .1 21.4 .1
fastap           63.6 .2 34.5 .2 23.7 .2 | 55.9 .3 29.8 .2 19.1 .2
snr              67.3 .5 36.9 .2 26.1 .2 | 58.8 .3 31.6 .2 20.8 .2
multi_similarity 65.8 .3 36.0 .2 25.2 .2 | 58.2 .2 31.3 .2 20.5 .2
soft_triple      66.2 .4 36.5 .2 25.6 .2 | 59.6 .4 32.1 .2 21.3 .2
triplet          64.4 .4 34.6 .4 23.8 .4 | 56.0 .3 29.6 .3 18.8 .3
proxy_anchor     65.2 .2 36.0 .2 25.3 .1 | 56.6 .1 30.5 .1 19.8 .2
drml             66.5 .1 36.8 .2 26.0 .2 | 59.5 .2 32.0 .3 21.2 .2
drml/triplet     64.2 .5 34.8 .4 24.1 .3 | 56.3 .4 30.0 .5 19.3 .4
drml/cosface     69.2 .3 37.8 .2 27.2 .2 | 60.2 .3 33.0 .2 22.3 .3
cosface          67.2 .4 37.4 .2 26.5 .2 | 59.8 .3 32.1 .2 21.6 .2
"""
Scores = dict[str, tuple[float, float | None]]  # metric -> value and half-width


@dataclass(frozen=True)
class Source:
    """A published table."""

    title: str
    part: Part  # comparable with this part
    network: str
    differs: str
    rows: dict[str, Scores]  # by `row_name`


def sources() -> list[Source]:
    """Every table."""
    evaluation = "Unbiased Evaluation of Deep Metric Learning Algorithms (2019)"
    relational = "Deep Relational Metric Learning, supplement (2021), after A Metric Learning Reality Check (2020)"
    classic = "One network for all training classes, no intervals; Proxy-Softmax has 2048 bits, DREML is an ensemble."
    checked = "Four folds, intervals over ten runs; N. Softmax is proxy_softmax, MS has its miner, drml is DRML-PA."
    return [
        Source(evaluation, "separated", "Inception-BN, 64 dims", classic, _column(UNBIASED, 0, UNBIASED_METRICS)),
        Source(evaluation, "separated", "ResNet-50 v2", classic, _column(UNBIASED, 1, UNBIASED_METRICS)),
        Source(relational, "separated", "BN-Inception, 128 dims", checked, _pairs(REALITY, 1)),
        Source(relational, "concatenated", "BN-Inception, 4 x 128 dims", checked, _pairs(REALITY, 0)),
    ]


def _numbers(table: str, column: int) -> dict[str, list[float]]:
    lines = [line.split(maxsplit=1) for line in table.strip().splitlines()]
    found = {name: [float(word) / 100 for word in rest.split("|")[column].split()] for name, rest in lines}
    return {name: numbers for name, numbers in found.items() if numbers}


def _column(table: str, column: int, metrics: tuple[str, ...]) -> dict[str, Scores]:
    rows = _numbers(table, column)
    return {name: {m: (value, None) for m, value in zip(metrics, row, strict=True)} for name, row in rows.items()}


def _pairs(table: str, column: int) -> dict[str, Scores]:
    rows = _numbers(table, column)
    return {
        name: dict(zip(REALITY_METRICS, zip(row[::2], row[1::2], strict=True), strict=True))
        for name, row in rows.items()
    }


def row_name(name: str, params: Mapping[str, Any]) -> str:
    """The row that a method stands beside: its name, with the base it is made of where that is not the default."""
    base = params.get("method.params.base")
    if base is None or base == losses.method(name).parameters["base"].default:
        return name
    return f"{name}/{base}"


def papers(results: BenchResults, boards: dict[Part, Board]) -> dict[str, Any] | None:
    """Tables with at least two of our methods; None unless the data is CUB-200-2011."""
    if (results.data.get("images"), results.data.get("classes")) != (11_788, 200):
        return None
    number = {method.label: i for i, method in enumerate(results.methods)}
    tables = []
    for source in sources():
        board = boards.get(source.part)
        ours = [one for one in board.standings if row_name(one.name, one.params) in source.rows] if board else []
        if len(ours) < 2:
            continue
        common = [m for m in next(iter(source.rows.values())) if all(m in one.scores for one in ours)]
        theirs = [source.rows[row_name(one.name, one.params)] for one in ours]
        taus = {m: kendall_tau([one.scores[m].mean for one in ours], [row[m][0] for row in theirs]) for m in common}
        rows = [
            {"method": number[one.label], "scores": {m: list(row[m]) for m in common}}
            for one, row in zip(ours, theirs, strict=True)
        ]
        facts = {"title": source.title, "part": source.part, "network": source.network, "differs": source.differs}
        tables.append({**facts, "metrics": common, "taus": taus, "rows": rows})
    return {"ours": _network(results), "tables": tables} if tables else None


def _network(results: BenchResults) -> str:
    model = results.config.get("run", {}).get("model", {})
    return f"{model.get('backbone', 'unknown')}, {model.get('dim', '?')} dims, {results.data.get('image_size', '')}"
