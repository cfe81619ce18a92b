"""Embed a dataset into a file, part by part, so that an interruption costs one part.

    out.npz          embeddings (N, D) float32, labels (N,) if they are known, paths (N,) if images are files,
                     info: JSON of what made it
    out.npz.parts/   until then: plan.json, and one array for each finished part

Axes: N images, D embedding dims.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearfield import data
from nearfield._version import __version__
from nearfield.config import BACKBONES, DataConfig
from nearfield.data import Dataset, official
from nearfield.data.dataset import Images, Pixels
from nearfield.data.input_spec import PictureInput, input_of
from nearfield.data.pictures import Paths, Pictures, decode
from nearfield.errors import InputError, nearest
from nearfield.export.model import Embedder, load
from nearfield.export.unlabelled import Unlabelled, find_images, is_unlabelled
from nearfield.files import atomic_write, write_json
from nearfield.models import EmbeddingModel, embed, pretrained_backbone
from nearfield.models.embed_images import Rows
from nearfield.progress import Progress

PART = 512  # images
Model = EmbeddingModel | Embedder
Source = TypeVar("Source", Dataset, Unlabelled, Dataset | Unlabelled)
Split = Literal["all", "train", "test"]


def open_images(*names: str) -> Dataset | Unlabelled:
    """The dataset with that name or at that path, or images without labels: files, glob patterns, folders, or several.

    A folder is a dataset if it has class folders enough for one. Images in files are in colour.
    """
    if len(names) == 1 and (names[0] in {*data.names(), *official.KINDS} or not is_unlabelled(names[0])):
        folder = Path(names[0]).is_dir() and names[0] not in data.names()
        return data.load(names[0], colour=True) if folder else data.load(names[0])
    return find_images(names)


def open_model(spec: str, weights: Path | None, dataset: Dataset | Unlabelled, normalize: bool | None = None) -> Model:
    """The model of an exported folder or of a finished run, or a backbone by name with its pretrained weights.

    InputError if it cannot embed `dataset`. A trained model gives embeddings of length 1 with `normalize`, by default
    if it compares them by cosine, as everywhere (`nearfield.load`). A backbone gives its features as they are.
    """
    if not Path(spec).is_dir():
        if spec not in BACKBONES and not spec.startswith("timm:"):
            hint = nearest(spec, BACKBONES)
            rule = "model must be an exported model, the folder of a finished run, or a backbone"
            raise InputError(f"{rule}; got {spec!r}, {hint}")
        return pretrained_backbone(spec, weights)
    if weights is not None:
        raise InputError(f"weights are for a backbone by name, but the model {spec} has its own. Leave them out.")
    model = load(spec, normalize)
    if dataset.are_features:
        model.input.items(dataset.images)
    elif model.input.kind == "features":
        raise InputError(f"the model {spec} takes {model.input.words}; {dataset.name} holds images.")
    return model


def as_trained(dataset: Source, model: Model) -> Source:
    """The dataset with its images prepared as the model's test images were; unchanged for a backbone by name."""
    if not isinstance(model, Embedder) or not isinstance(model.input, PictureInput) or dataset.are_features:
        return dataset
    return replace(dataset, images=_Prepared(dataset.images, model.input))


def embed_to_file(
    model: Model,
    dataset: Dataset | Unlabelled,
    out: Path,
    split: Split = "all",
    batch_size: int = 64,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the embeddings of a dataset, resuming from the parts of an interrupted call; their shape (N, D)."""
    if out.suffix != ".npz":
        raise InputError(f"out must end in .npz; got {out}.")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {batch_size}.")
    rows = rows_of(dataset, split)
    origin = model.pretrained._asdict() if model.pretrained else None
    info: dict[str, Any] = {"model": origin, "dim": model.dim, "data": dataset.fingerprint, "nearfield": __version__}
    if isinstance(dataset, Unlabelled):
        info |= {"images": dataset.images.looks, "split": split, "train_images": 0}
    else:
        info |= {"images": dataset.summary()["image_size"], "split": split}
        info["train_images"] = int(np.isin(rows, dataset.train_rows()).sum())
    info["normalized"] = isinstance(model, Embedder) and model.normalize
    if isinstance(dataset, Dataset) and isinstance(model, EmbeddingModel) and model.backbone_name is not None:
        taken = input_of(dataset, DataConfig()).model_dump(mode="json")
        info["backbone"] = {"name": model.backbone_name, "input": taken}  # so that a head on it can be joined with it
    parts = _open_parts(out, {**info, "batch_size": batch_size, "part": PART})
    report = progress or _silent
    for start in range(0, len(rows), PART):
        chosen = rows[start : start + PART]
        if not _has_part(parts / _name(start), (len(chosen), model.dim)):
            _write_part(
                parts / _name(start), model, _Chosen(dataset.images, chosen), batch_size, report, start, len(rows)
            )
        report(start + len(chosen), len(rows))
    arrays = {} if isinstance(dataset, Unlabelled) else {"labels": dataset.labels[rows]}
    arrays["info"] = np.array(json.dumps(info))
    images = dataset.images.images if isinstance(dataset.images, _Prepared) else dataset.images
    if isinstance(images, Pictures):
        arrays["paths"] = np.array(paths_of(images))[rows]
    shape = (len(rows), model.dim)
    _write_npz(out, [parts / _name(start) for start in range(0, len(rows), PART)], shape, arrays)
    shutil.rmtree(parts, ignore_errors=True)
    return shape


def rows_of(dataset: Dataset | Unlabelled, split: Split) -> NDArray[np.int64]:
    """The rows of all images, or of the training or the test part."""
    if split == "all":
        return np.arange(len(dataset.images))
    if isinstance(dataset, Unlabelled):
        raise InputError(f"split must be all for images without labels; got {split} for {dataset.name}.")
    return dataset.train_rows() if split == "train" else dataset.test_rows()


def default_split(dataset: Dataset | Unlabelled) -> Split:
    """The test part, so that scores are of classes that no run trains on; all images if there is no split."""
    return "test" if isinstance(dataset, Dataset) and len(dataset.train_rows()) and len(dataset.test_rows()) else "all"


def paths_of(pictures: Pictures) -> list[str]:
    """The path of each image, below the dataset's folder if it has one."""
    files = pictures.files
    return list(files.paths) if isinstance(files, Paths) else [files.name(row) for row in range(len(files))]


def at_size(dataset: Source, size: int | None, resize: str) -> Source:
    """The dataset with its images resized; unchanged without a size."""
    if size is None:
        return dataset
    if not isinstance(dataset.images, Pictures):
        raise InputError(f"size is for images in files; those of {dataset.name} are arrays of one size. Leave it out.")
    return replace(dataset, images=dataset.images.at(size, resize))


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Images that are prepared for a model on demand."""

    images: Images
    input: PictureInput

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any, /) -> Any:
        return np.stack([self._one(int(row)) for row in np.arange(len(self))[rows]])

    def _one(self, row: int) -> Pixels:
        if not isinstance(self.images, Pictures):
            return self.input.picture(self.images[row])
        files = self.images.files
        return self.input.picture(decode(files.read(row), files.name(row), self.input.colour))

    @property
    def looks(self) -> str:
        """The prepared images, in words."""
        return self.input.words


@dataclass(frozen=True)
class _Chosen:
    """Some rows of the images, read on demand."""

    images: Rows
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: slice, /) -> Any:
        return self.images[self.rows[place]]


def _open_parts(out: Path, plan: dict[str, Any]) -> Path:
    """The folder of parts; parts of another model, dataset or split are deleted."""
    parts = out.with_name(f"{out.name}.parts")
    known = parts / "plan.json"
    if not known.exists() or json.loads(known.read_text(encoding="utf-8")) != json.loads(json.dumps(plan)):
        shutil.rmtree(parts, ignore_errors=True)
        write_json(known, plan)
    return parts


def _has_part(path: Path, shape: tuple[int, int]) -> bool:
    try:
        return bool(np.load(path, mmap_mode="r").shape == shape)
    except (OSError, ValueError, EOFError):
        return False


def _write_part(
    path: Path, model: Model, images: Rows, batch_size: int, progress: Progress, start: int, total: int
) -> None:
    found = embed(model, images, batch_size, lambda done, _: progress(start + done, total))
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, found.float().cpu().numpy())


def _write_npz(out: Path, parts: list[Path], shape: tuple[int, int], arrays: dict[str, NDArray[Any]]) -> None:
    """Join the parts one at a time; no timestamp is written, so that equal contents give equal files."""
    with atomic_write(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open(zipfile.ZipInfo("embeddings.npy"), "w", force_zip64=True) as stream:
            head = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, head)
            for part in parts:
                stream.write(np.load(part).astype("<f4", copy=False).tobytes())
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _name(start: int) -> str:
    return f"{start:09d}.npy"


def _silent(done: int, total: int) -> None:
    pass
