"""What pydantic says against a value, as one of this package's errors: the first complaint, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from tilewright.errors import BadInput, TilewrightError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationError


def refused(
    error: ValidationError, model: type[BaseModel], what: str = "argument", where: str = ""
) -> TilewrightError:
    """The error to raise.

    Args:
        model: that was to be made.
        what: a name that does not exist is called: "argument".
        where: put before the message, like the name of a file.
    """
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        *parents, name = first["loc"]
        parent = f"{what} of {'.'.join(map(str, parents))}" if parents else what
        return UnknownName(parent, str(name), _names_at(model, parents))
    given = first["input"]
    short = isinstance(given, str | int | float | bool) and len(str(given)) <= 80
    shown = f" (given: {given!r})" if short else ""
    message = str(first["msg"]).removeprefix("Value error, ")
    said = ": ".join(filter(None, (where, place, f"{message}{shown}")))
    return BadInput(said, given=given if short else place, allowed=message)


def _names_at(model: type[BaseModel], parents: Sequence[int | str]) -> set[str]:
    """The names that exist below a place; of a union, those of all its members."""
    models = {model}
    for part in parents:
        fields = (each.model_fields.get(str(part)) for each in models)
        inside = {m for field in fields if field is not None for m in _models_in(field.annotation)}
        models = inside or models  # else a key, an index or the tag of a union
    return {name for each in models for name in each.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
