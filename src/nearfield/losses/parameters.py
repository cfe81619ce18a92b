"""Parameters of methods: a constructor's annotations say what it accepts, and every value is checked before it runs.

The types below carry the ranges. A parameter without an annotation accepts anything; a plain `float` must be finite.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from nearfield.errors import InputError, nearest
from nearfield.pairs.mining import miner

LARGE = 1e6  # bound of every real parameter: float32 holds its square, summed over any batch
Number = Annotated[float, Field(ge=-LARGE, le=LARGE)]  # margins, offsets
Scale = Annotated[float, Field(ge=1 / LARGE, le=LARGE)]  # scales, temperatures
Weight = Annotated[float, Field(ge=0, le=LARGE)]  # factors of a term that may be left out
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Classes = Annotated[int, Field(ge=1, lt=2**31, description="Labels are from 0 to num_classes - 1.")]
Dim = Annotated[int, Field(ge=1, le=2**20, description="It is the number of columns of the embeddings.")]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]

Params = Mapping[str, Any]
_WORDS = {  # pydantic's and ours
    "Input should": "must",
    "Value should": "must",
    " after validation": "",
    "'str' instances are not allowed as a Sequence value": "must be a list",
    "'bytes' instances are not allowed as a Sequence value": "must be a list",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_Class = TypeVar("_Class", bound=type[Any])


@runtime_checkable
class ChecksTogether(Protocol):
    """A class some of whose parameters must fit each other."""

    @staticmethod
    def check_together(params: Params) -> None:
        """InputError unless all of these parameters, each valid by itself, fit each other."""


def validated(owner: str) -> Callable[[_Class], _Class]:
    """Class decorator: the constructor checks its arguments by their annotations; errors call the class `owner`."""

    def wrap(build: _Class) -> _Class:
        construct, signature = build.__init__, inspect.signature(build.__init__)
        names = list(signature.parameters)[1:]  # without self

        @functools.wraps(construct)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind_partial(self, *args, **kwargs)
            by_place = dict(zip(names, given.args[1:], strict=False))
            construct(self, **check_values(owner, build, {**by_place, **given.kwargs}))

        build.__init__ = checked
        return build

    return wrap


def check_values(owner: str, build: type[object], given: Params) -> dict[str, Any]:
    """All arguments of the constructor of `build`, defaults filled in; InputError unless `given` are valid."""
    rules = rules_of(build)  # type: ignore[arg-type]  # mypy takes a class for unhashable
    for name in given:
        if name not in rules:
            raise InputError(f"{owner} has no parameter {shown(name)}; {nearest(str(name), rules)}")
    own = own_parameters(build)  # type: ignore[arg-type]
    values = {**{name: parameter.default for name, parameter in own.items()}, **given}
    missing = [name for name, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise InputError(f"{owner} needs {' and '.join(missing)}; give {missing[0]}=....")
    if isinstance(values.get("miner"), str):
        values["miner"] = miner(values["miner"])
    checked = {name: rules[name].check(owner, name, value) for name, value in values.items()}
    if issubclass(build, ChecksTogether):
        build.check_together(checked)
    return checked


@functools.cache
def own_parameters(build: type[object]) -> Mapping[str, inspect.Parameter]:
    """The constructor's named parameters, without options that it passes on."""
    parameters = inspect.signature(build).parameters
    return {n: p for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}


@functools.cache
def rules_of(build: type[object]) -> dict[str, Rule]:
    """The rule of each argument of the constructor, those of its `**options: Unpack[...]` included."""
    hints = get_type_hints(build.__init__, include_extras=True)
    own, found = own_parameters(build), {}  # type: ignore[arg-type]
    for name, parameter in own.items():
        remedy = "" if parameter.default is parameter.empty else f"The default is {parameter.default!r}."
        found[name] = Rule.of(hints.get(name, Any), remedy)
    for name in inspect.signature(build).parameters.keys() - own.keys():
        for options in get_args(hints.get(name)):
            for option, hint in get_type_hints(options, include_extras=True).items():
                found[option] = Rule.of(hint, "Leave it out for the default.")
    return found


class Rule(NamedTuple):
    """What a parameter may be."""

    hint: Any
    adapter: TypeAdapter[Any]
    remedy: str

    @classmethod
    def of(cls, hint: Any, remedy: str) -> Rule:
        """The rule that an annotation is; where it comes with a description, errors end with that too."""
        notes = [note.description for note in get_args(hint) if isinstance(note, FieldInfo) and note.description]
        return cls(hint, TypeAdapter(hint, config=_STRICT), " ".join([*notes, remedy]).rstrip())

    def check(self, owner: str, name: str, value: Any) -> Any:
        """`value` as the constructor takes it; InputError if it breaks the rule."""
        try:
            return self.adapter.validate_python(value.item() if isinstance(value, np.generic) else value)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            where = ", ".join([name, *map(str, problem["loc"])])  # of a mapping, the key
            remedy = self.remedy
            if get_origin(self.hint) is Literal:
                remedy = nearest(value if isinstance(value, str) else shown(value), get_args(self.hint))
                remedy = remedy[0].upper() + remedy[1:]
            rule = functools.reduce(lambda text, words: text.replace(*words), _WORDS.items(), problem["msg"])
            raise InputError(f"{owner}: {where} {rule}; got {shown(value)}. {remedy}".rstrip()) from None


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits has none
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
