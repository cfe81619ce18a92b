"""Make and change an index: what is new is embedded, what is unchanged is kept, and readers see all of it or nothing.

    1  hash the files and compare with the items of the index
    2  embed new contents, part by part, as pending items (a second attempt finds them)
    3  engine: add what is new; measure recall; calibrate
    4  one transaction: new items are shown, old ones are gone

Killed before 4, the index is as it was; the same command resumes.

Axes: N items, D dims.
"""

from __future__ import annotations

import fnmatch
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nearfield.data.leaks import difference_hash
from nearfield.data.pictures import decode, digest_of, map_in_order
from nearfield.errors import InputError
from nearfield.export.description import Description, read_description
from nearfield.index.collection import Source, find_sources
from nearfield.index.engines import Engine, check_engine, open_engine
from nearfield.index.known_classes import calibrate_index
from nearfield.index.measure import measure
from nearfield.index.model import IndexModel, open_model
from nearfield.index.store import FORMAT, GONE, LIVE, PENDING, Embedded, Row, Store, writing
from nearfield.index.thumbnails import thumbnail
from nearfield.progress import Progress, reported

PART = 256  # images embedded between two transactions
SMALL = 10_000  # items, up to which every change is measured
DRIFT = 0.02  # share of items by which a larger index may change without being measured again
BLOCK = 4096  # vectors given to the engine at a time
DEFAULTS: dict[str, Any] = {"engine": "faiss", "false_accept": 0.01, "gallery_size": None}


@dataclass(frozen=True)
class Options:
    """How an index is made; stored with it. None: as the index has it, or the default."""

    engine: str | None = None  # default: faiss
    false_accept: float | None = None  # share of queries of new classes that may be taken for known ones; 0.01
    gallery_size: int | None = None  # items that the index is expected to hold; default: as many as it holds


@dataclass
class Changes:
    """What a command changed."""

    embedded: int = 0
    added: int = 0
    kept: int = 0
    removed: int = 0
    problems: list[str] = field(default_factory=list)  # images that could not be read, and why


@dataclass(frozen=True)
class _Wanted:
    source: Source
    digest: bytes

    @property
    def key(self) -> tuple[str | None, str]:
        return self.source.root, self.source.path


def build_index(
    model: str | PathLike[str] | IndexModel,
    photos: Sequence[str],
    out: str | PathLike[str],
    *,
    dims: int | None = None,
    labelled: bool = True,
    weights: Path | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Changes:
    """Index the images of `photos` with `model` in the folder `out`; a second time only what changed is embedded.

    Images that are no longer in the folders of `photos` leave the index; those of other folders stay.
    """
    home = Path(out)
    made = model if isinstance(model, IndexModel) else open_model(str(model), dims, weights)
    with writing(home) as store:
        _adopt(store, home, made, options)
        sources = find_sources(photos, labelled)
        roots = {source.root for source in sources if source.root} | {
            str(Path(name).resolve()) for name in photos if Path(name).is_dir()
        }
        return _change(store, home, made, sources, roots, progress)


def add_photos(
    out: str | PathLike[str], photos: Sequence[str], *, labelled: bool = True, progress: Progress | None = None
) -> Changes:
    """Add images to the index `out`, embedded with its own model; nothing leaves it."""
    home = Path(out)
    Store(home).close()
    with writing(home) as store:
        return _change(store, home, stored_model(store, home), find_sources(photos, labelled), set(), progress)


def add_images(
    out: str | PathLike[str], images: Sequence[tuple[str, str | None, bytes]], model: IndexModel | None = None
) -> Changes:
    """Add encoded images (name, label, content) that are in no file."""
    home = Path(out)
    Store(home).close()
    sources = [Source(None, name, label, _constant(content)) for name, label, content in images]
    with writing(home) as store:
        return _change(store, home, model or stored_model(store, home), sources, set(), None)


def remove_items(out: str | PathLike[str], ids: Iterable[int]) -> Changes:
    """Remove items by id; unknown ids are ignored."""
    home, wanted = Path(out), set(ids)
    Store(home).close()
    with writing(home) as store:
        rows = store.rows()
        gone = [row for row in rows if row.id in wanted]
        _publish(store, home, [], gone, [row for row in rows if row.id not in wanted])
        return Changes(kept=len(rows) - len(gone), removed=len(gone))


def remove_photos(out: str | PathLike[str], names: Sequence[str]) -> Changes:
    """Remove items by file, folder or pattern: of the path, or of the path below its folder."""
    home = Path(out)
    Store(home).close()
    with writing(home) as store:
        rows = store.rows()
        gone: dict[int, Row] = {}
        for name in names:
            found = [row for row in rows if _is_meant(row, name)]
            if not found:
                raise InputError(f"remove must name items of {home}; none is at, below or like {name}.")
            gone |= {row.id: row for row in found}
        _publish(store, home, [], list(gone.values()), [row for row in rows if row.id not in gone])
        return Changes(kept=len(rows) - len(gone), removed=len(gone))


def stored_model(store: Store, home: Path) -> IndexModel:
    """The model that made the vectors of the index; InputError if its files are not the ones that were stored."""
    facts = store.fact("model")
    model = open_model(home / facts["folder"], facts["dims"])
    if model.digest != facts["digest"]:
        raise InputError(f"{home / facts['folder']} is not the model that made this index. Restore it or index again.")
    return model


def stored_description(store: Store, home: Path) -> Description:
    """What the model of the index is."""
    return read_description(home / store.fact("model")["folder"] / "config.json")


def stored_engine(store: Store, home: Path) -> Engine:
    """The engine of the index."""
    facts = store.fact("model")
    return open_engine(
        store.fact("options")["engine"], home, facts["dims"], f"nearfield_{store.fact('name')}", store.fact("snapshot")
    )


def _adopt(store: Store, home: Path, model: IndexModel, options: Options | None) -> None:
    """Store model and options with a new index; of an existing one, refuse another model."""
    known, finished = store.fact("model"), store.fact("format") is not None
    if finished and known["digest"] != model.digest:
        raise InputError(
            f"{home} was made with another model (digest {known['digest'][:12]}; got {model.digest[:12]}): vectors of "
            "two models cannot be compared. Choose another --out, or delete the index first."
        )
    if known is not None and not finished and known["digest"] != model.digest:  # an attempt with another model
        store.erase(row.id for row in store.rows(PENDING))
        known = None
    if known is None or not (home / known["folder"]).is_dir():
        folder = f"model-{model.digest[:12]}"
        shutil.rmtree(home / folder, ignore_errors=True)
        model.save(home / folder)
        with store.transaction():
            store.set_fact("model", {"digest": model.digest, "folder": folder, "dims": model.dim, "full": model.full})
            store.set_fact("name", store.fact("name") or secrets.token_hex(6))
    now = store.fact("options") or DEFAULTS
    given = {name: value for name, value in vars(options or Options()).items() if value is not None}
    check_engine(given.get("engine", now["engine"]))
    if not 0 < given.get("false_accept", 0.5) < 1:
        raise InputError(f"false_accept must be above 0 and below 1; got {given['false_accept']}.")
    if finished and given.get("engine", now["engine"]) != now["engine"]:
        raise InputError(f"{home} uses the engine {now['engine']}; got {given['engine']}. Choose another --out.")
    store.set_fact("options", {**now, **given})


def _change(
    store: Store, home: Path, model: IndexModel, sources: Sequence[Source], roots: set[str], progress: Progress | None
) -> Changes:
    changes = Changes()
    wanted = list(_hashed(sources, changes.problems))
    live = {(row.root, row.path): row for row in store.rows()}
    old = [each for each in wanted if each.key in live and live[each.key].digest == each.digest]
    new = [each for each in wanted if not (each.key in live and live[each.key].digest == each.digest)]
    _embed(store, model, new, live, changes, progress)
    pending = {(row.root, row.path, row.digest): row for row in store.rows(PENDING)}
    found = [(pending.get((*each.key, each.digest)), each) for each in new]
    added = [row._replace(label=each.source.label) for row, each in found if row is not None]
    kept = [live[each.key]._replace(label=each.source.label) for each in old]
    keys = {each.key for each in wanted}
    replaced = {(row.root, row.path) for row in added}
    gone = [row for key, row in live.items() if key in replaced or (row.root in roots and key not in keys)]
    lost = {row.id for row in gone}
    stays = {row.id: row for row in live.values() if row.id not in lost} | {row.id: row for row in kept}
    changes.added, changes.kept, changes.removed = len(added), len(stays), len(gone)
    here, used = {source.root for source in sources}, {row.id for row in added}
    stale = [row for row in pending.values() if row.root in here and row.id not in used]  # of an earlier attempt
    _publish(store, home, added, [*gone, *stale], list(stays.values()))
    return changes


def _hashed(sources: Sequence[Source], problems: list[str]) -> Iterator[_Wanted]:
    """The sources with the hashes of their contents; those that cannot be read become problems."""

    def look(place: int) -> bytes | str:
        try:
            sources[place].path.encode()
            return digest_of(sources[place].read()).tobytes()
        except InputError as error:
            return str(error)
        except UnicodeEncodeError:
            return f"cannot index {sources[place].path!r}: its name is not UTF-8. Rename it."

    with reported("Hashing images") as report:
        for source, found in zip(sources, map_in_order(look, len(sources), report), strict=True):
            if isinstance(found, str):
                problems.append(found)
            else:
                yield _Wanted(source, found)


def _embed(
    store: Store,
    model: IndexModel,
    new: Sequence[_Wanted],
    live: dict[tuple[str | None, str], Row],
    changes: Changes,
    progress: Progress | None,
) -> None:
    """Store each new image as a pending item: already one, copied from an item with the same content, or embedded."""
    waiting = store.rows(PENDING)
    done = {(row.root, row.path, row.digest) for row in waiting}
    todo = [each for each in new if (*each.key, each.digest) not in done]
    contents = {row.digest: row for row in (*live.values(), *waiting)}
    with reported("Embedding images", progress) as report:
        for start in range(0, len(todo), PART):
            part = todo[start : start + PART]
            fresh = _embed_part(model, [each for each in part if each.digest not in contents], changes)
            with store.transaction():
                for each in part:
                    if each.digest in contents:
                        row = contents[each.digest]
                        vector, small = store.image(row.id)
                        store.insert([_entry(each, row.hash, vector, small)])
                    elif each.digest in fresh:
                        store.insert([_entry(each, *fresh[each.digest])])
            report(min(start + PART, len(todo)), len(todo))
            if fresh:
                contents |= {row.digest: row for row in store.rows(PENDING) if row.digest in fresh}


def _entry(each: _Wanted, bits: bytes, vector: Any, small: bytes) -> Embedded:
    return Embedded(each.source.root, each.source.path, each.source.label, each.digest, bits, vector, small)


def _embed_part(model: IndexModel, part: Sequence[_Wanted], changes: Changes) -> dict[bytes, tuple[bytes, Any, bytes]]:
    """Difference hash, vector and thumbnail of each content; what cannot be decoded becomes a problem."""
    chosen = list({each.digest: each for each in part}.values())

    def prepare(place: int) -> tuple[Any, bytes, bytes] | str:
        try:
            source = chosen[place].source
            image = decode(source.read(), source.path, model.input.colour)
            bits = np.packbits(difference_hash(np.asarray(image))).tobytes()
            return model.input.picture(image), bits, thumbnail(image)
        except InputError as error:
            return str(error)

    ready = list(map_in_order(prepare, len(chosen)))
    changes.problems += [found for found in ready if isinstance(found, str)]
    good = [(each.digest, *found) for each, found in zip(chosen, ready, strict=True) if not isinstance(found, str)]
    vectors = model.embed_prepared([pixels for _, pixels, _, _ in good])
    changes.embedded += len(good)
    return {digest: (bits, vectors[i], small) for i, (digest, _, bits, small) in enumerate(good)}


def _publish(store: Store, home: Path, added: Sequence[Row], gone: Sequence[Row], stays: Sequence[Row]) -> None:
    """Show `added`, hide `gone`; `stays` are all other items, with their labels as they shall be."""
    engine = stored_engine(store, home)
    before = dict(
        zip(*(part.tolist() if isinstance(part, np.ndarray) else part for part in store.labels()), strict=True)
    )
    relabelled = [row for row in stays if before[row.id] != row.label]
    lost = np.array([row.id for row in (*gone, *store.rows(GONE))], np.int64)
    try:
        for start in range(0, len(changed := [*added, *relabelled]), BLOCK):
            part = changed[start : start + BLOCK]
            ids = [row.id for row in part]
            engine.add(np.array(ids, np.int64), store.vectors(ids), [row.label for row in part])
        if engine.snapshots:
            engine.delete(lost)
        name = engine.save()
        facts = _measured(store, home, engine, sorted([*stays, *added]))
        with store.transaction():
            store.relabel((row.label, row.id) for row in (*added, *relabelled))
            store.set_state((row.id for row in added), LIVE)
            store.set_state((row.id for row in gone), GONE)
            for key, value in {**facts, "snapshot": name, "format": FORMAT}.items():
                store.set_fact(key, value)
        engine.delete(lost)
        if engine.snapshots:
            engine.tidy(name)  # type: ignore[attr-defined]
    finally:
        engine.close()
    leftover = [row.id for row in store.rows(GONE)]
    with store.transaction():
        store.erase(leftover)


def _measured(store: Store, home: Path, engine: Engine, rows: Sequence[Row]) -> dict[str, Any]:
    """Facts about search and calibration; those of a large index are measured again only after a larger change."""
    before, options = store.fact("measured"), store.fact("options")
    same = before is not None and store.fact("measured_with") == options
    if same and len(rows) > SMALL and abs(len(rows) - before["items"]) <= DRIFT * before["items"]:
        return {}
    found = calibrate_index(
        store, rows, stored_description(store, home), options["false_accept"], options["gallery_size"]
    )
    return {
        "measured": measure(store, engine, rows),
        "measured_with": options,
        "calibration": found.facts,
        "note": found.note,
    }


def _is_meant(row: Row, name: str) -> bool:
    full = Path(row.root or "") / row.path
    given = Path(name).resolve()
    return (
        row.path == name
        or (row.root is not None and (full == given or given in full.parents))
        or fnmatch.fnmatchcase(row.path, name)
        or fnmatch.fnmatchcase(str(full), name)
    )


def _constant(content: bytes) -> Any:
    return lambda: content
