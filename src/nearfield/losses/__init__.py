"""Every loss by name: `create("multi_similarity", alpha=2.0)`, `names()`."""

from nearfield.losses import neighbourhood, npairs, pairwise, proxies, ranking, triplets
from nearfield.registry import create, method, names

__all__ = ["create", "method", "names", "neighbourhood", "npairs", "pairwise", "proxies", "ranking", "triplets"]
