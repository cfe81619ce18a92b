"""The handwritten digits of scikit-learn, 8x8 pixels: a dataset for tests and first steps."""

from __future__ import annotations

import numpy as np

from nearfield.data.dataset import Dataset, fingerprint


def load() -> Dataset:
    """1,797 images of ten digits, grey levels 0..16 scaled to 0..255; 0-4 are for training, 5-9 for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255.0 / 16.0)).astype(np.uint8)  # (N, 8, 8)
    labels = bunch.target.astype(np.int64)
    train, test = np.arange(0, 5), np.arange(5, 10)
    return Dataset(
        name="digits",
        images=images,
        labels=labels,
        class_names=tuple(str(digit) for digit in range(10)),
        class_category=np.zeros(10, dtype=np.int64),
        category_names=("Digits",),
        train_classes=train.astype(np.int64),
        test_classes=test.astype(np.int64),
        fingerprint=fingerprint(images, labels, train, test),
        description="Handwritten digits, 8x8 pixels, from scikit-learn's load_digits (Alpaydin and Kaynak, 1998).",
    )
