"""The JSON of the API, version 1. A field may be added to a version; none changes its meaning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from nearfield.index import Item
from nearfield.serve.queries import Answer

Id = Annotated[int, Field(ge=0, le=2**63 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=16_384)]
EXAMPLES = 16  # of one query
FEEDBACK = 200  # items marked right, and wrong


class Asked(BaseModel):
    """A query as JSON: examples by vector or by id, and feedback on items."""

    model_config = ConfigDict(extra="forbid", strict=True)

    vector: Vector | None = None
    vectors: Annotated[list[Vector], Field(max_length=EXAMPLES)] = []
    items: Annotated[list[Id], Field(max_length=EXAMPLES)] = []
    right: Annotated[list[Id], Field(max_length=FEEDBACK)] = []
    wrong: Annotated[list[Id], Field(max_length=FEEDBACK)] = []


class Neighbour(BaseModel):
    """An item that is similar to the query."""

    id: int
    label: str | None
    score: float = Field(description="cosine similarity")
    path: str
    copies: list[int] = Field(description="items with the same content, collapsed into this one")
    near: list[int] = Field(description="items that look almost the same, collapsed into this one")


class Suggestion(BaseModel):
    """The class of the nearest labelled item."""

    label: str
    probability: float | None = Field(description="that it is right; null if not calibrated for such a query")


class Searched(BaseModel):
    """The answer to a query."""

    version: Literal[1] = 1
    neighbours: list[Neighbour]
    suggestion: Suggestion | None
    is_new: bool | None = Field(description="whether its class is not in the index; null if not calibrated")
    p_value: float | None = Field(description="share of queries of known classes at most this similar to their class")
    collapsed: bool = Field(description="whether duplicates were collapsed; not while they are still being looked for")
    vector: list[float] | None = Field(description="the vector that was searched, if asked for")
    vectors: list[list[float]] | None = Field(description="the vectors of the images, if asked for")
    milliseconds: dict[str, float] = Field(description="decode, embed (with waiting), search, total")


class ItemFacts(BaseModel):
    """An indexed image."""

    version: Literal[1] = 1
    id: int
    label: str | None
    path: str
    digest: str = Field(description="hash of the content: BLAKE2b, 16 bytes")
    has_file: bool = Field(description="whether it was indexed from a file that is still there")
    thumbnail: str
    file: str


class Items(BaseModel):
    """A part of the collection."""

    version: Literal[1] = 1
    total: int
    items: list[ItemFacts]


class Change(BaseModel):
    """What a change did."""

    version: Literal[1] = 1
    added: list[int]
    removed: list[int]
    items: int = Field(description="items of the index now")


class Near(BaseModel):
    """Two items that look almost the same."""

    first: int
    second: int
    bits: int
    score: float


class DuplicateLists(BaseModel):
    """Identical and near duplicates, kept apart."""

    version: Literal[1] = 1
    identical: list[list[int]]
    near: list[Near]


class AtlasPoints(BaseModel):
    """A map of the collection: item, class and place of each point."""

    version: Literal[1] = 1
    ids: list[int]
    labels: list[int] = Field(description="places in classes; -1 without a label")
    classes: list[str]
    x: list[float]
    y: list[float]


class Heat(BaseModel):
    """How far the similarity falls when a cell of the image is covered, row by row."""

    version: Literal[1] = 1
    score: float
    drops: list[list[float]]
    seen: tuple[float, float, float, float] = Field(description="the part of the image that the network sees")
    milliseconds: float


class IndexFacts(BaseModel):
    """What is served."""

    version: Literal[1] = 1
    name: str
    items: int
    classes: dict[str, int]
    unlabelled: int
    dims: int
    model: str = Field(description="digest of the model that made the vectors")
    engine: str | None
    threshold: float | None = Field(description="a query with a lower best score is new")
    false_accept: float | None = Field(description="share of queries of new classes that may be taken for known ones")
    note: str | None
    writable: bool
    generation: int


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"
    version: str
    items: int


class Problem(BaseModel):
    """An error."""

    error: dict[str, str | int]


def searched(
    found: Answer, collapsed: bool, vectors: list[list[float]] | None, milliseconds: dict[str, float]
) -> Searched:
    """The JSON of an answer; `vectors` are those of the images, if they were asked for."""
    return Searched(
        neighbours=[
            Neighbour(**vars(hit.neighbour), copies=list(hit.copies), near=list(hit.near)) for hit in found.hits
        ],
        suggestion=None if found.suggestion is None else Suggestion(**vars(found.suggestion)),
        is_new=found.is_new,
        p_value=found.p_value,
        collapsed=collapsed,
        vector=None if vectors is None else found.vector.tolist(),
        vectors=vectors,
        milliseconds={name: round(value, 2) for name, value in milliseconds.items()},
    )


def item_facts(item: Item, has_file: bool) -> ItemFacts:
    """The JSON of an item."""
    return ItemFacts(
        id=item.id,
        label=item.label,
        path=item.path,
        digest=item.digest,
        has_file=has_file,
        thumbnail=f"/items/{item.id}/thumbnail",
        file=f"/items/{item.id}/file",
    )
