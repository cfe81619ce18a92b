"""Every method by name: `create("multi_similarity", alpha=2.0)` builds one, `names()` lists them, `method(name)` is a
record of all that is known about one, `check_params(name, params)` checks parameters without building.
"""

from nearfield.losses import (
    classifiers,
    clusters,
    ensembles,
    faces,
    fields,
    hyperbolic,
    hypergraphs,
    neighbourhood,
    npairs,
    pairwise,
    proxies,
    ranking,
    relations,
    synthesis,
    triplets,
)
from nearfield.losses.registry import check_params, create, method, names

__all__ = [
    "check_params",
    "classifiers",
    "clusters",
    "create",
    "ensembles",
    "faces",
    "fields",
    "hyperbolic",
    "hypergraphs",
    "method",
    "names",
    "neighbourhood",
    "npairs",
    "pairwise",
    "proxies",
    "ranking",
    "relations",
    "synthesis",
    "triplets",
]
