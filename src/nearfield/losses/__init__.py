"""Every method by name: `create("multi_similarity", alpha=2.0)` builds one, `names()` lists them, `method(name)` is a
record of all that is known about one, `check_params(name, params)` checks parameters without building.
"""

from nearfield.losses import (
    calibrated,
    classifiers,
    clusters,
    contrast,
    ensembles,
    faces,
    fields,
    hyperbolic,
    hypergraphs,
    neighbourhood,
    nested,
    npairs,
    pairwise,
    proxies,
    ranking,
    recall,
    relations,
    selective,
    synthesis,
    triplets,
)
from nearfield.losses.registry import check_params, create, method, names, register_own

__all__ = [
    "calibrated",
    "check_params",
    "classifiers",
    "clusters",
    "contrast",
    "create",
    "ensembles",
    "faces",
    "fields",
    "hyperbolic",
    "hypergraphs",
    "method",
    "names",
    "neighbourhood",
    "nested",
    "npairs",
    "pairwise",
    "proxies",
    "ranking",
    "recall",
    "relations",
    "selective",
    "synthesis",
    "triplets",
]

register_own()
