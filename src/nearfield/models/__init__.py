"""Embedding models: a backbone that turns images into features, pooling, and a head that gives the embedding."""

from __future__ import annotations

from nearfield.models.backbones import Backbone, Preprocessing
from nearfield.models.build import build_model, pretrained_backbone
from nearfield.models.embed_images import embed
from nearfield.models.embedding_model import EmbeddingModel
from nearfield.models.heads import pca_head
from nearfield.models.pretrained import Pretrained, load_weights

__all__ = [
    "Backbone",
    "EmbeddingModel",
    "Preprocessing",
    "Pretrained",
    "build_model",
    "embed",
    "load_weights",
    "pca_head",
    "pretrained_backbone",
]
