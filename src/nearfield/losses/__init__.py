"""Every loss by name: `create("multi_similarity", alpha=2.0)`, `names()`."""

from nearfield.losses import (
    classifiers,
    clusters,
    ensembles,
    neighbourhood,
    npairs,
    pairwise,
    proxies,
    ranking,
    relations,
    triplets,
)
from nearfield.losses.registry import check_params, create, method, names

__all__ = [
    "check_params",
    "classifiers",
    "clusters",
    "create",
    "ensembles",
    "method",
    "names",
    "neighbourhood",
    "npairs",
    "pairwise",
    "proxies",
    "ranking",
    "relations",
    "triplets",
]
