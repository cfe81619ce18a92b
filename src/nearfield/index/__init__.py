"""Embeddings of a collection of images that can be searched.

`build_index` makes an index, `Index.open` searches it; `nearfield index` is the same on the command line.

    shop.index/   items.sqlite       items, vectors, thumbnails, calibration: the index itself
                  model-<digest>/    the model that made the vectors
                  search-<number>/   what faiss searches, memory-mapped; not with an engine on a server
                  lock.sqlite        held while a process changes the index
"""

from __future__ import annotations

from nearfield.index.answers import Item, Neighbour, SearchResult, Suggestion
from nearfield.index.build import Changes, Options, add_images, add_photos, build_index, remove_items, remove_photos
from nearfield.index.calibration import Calibration
from nearfield.index.duplicates import Duplicates, NearDuplicate
from nearfield.index.index import Index

__all__ = [
    "Calibration",
    "Changes",
    "Duplicates",
    "Index",
    "Item",
    "NearDuplicate",
    "Neighbour",
    "Options",
    "SearchResult",
    "Suggestion",
    "add_images",
    "add_photos",
    "build_index",
    "remove_items",
    "remove_photos",
]
