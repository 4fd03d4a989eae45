"""Results with arrays as checksummed JSON files: dataclasses, numbers, texts and NumPy arrays, bit for bit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from jaxsens.base.errors import InputError
from jaxsens.base.sealed import DamagedFile, read_sealed, write_sealed

if TYPE_CHECKING:
    import numpy as np

_ARRAY = {"dtype", "shape", "values"}
"""The keys of an array's object."""


class SavedResult:
    """A dataclass that is saved as a file of its own.

    Attributes:
        kind: what the file says that it holds.
    """

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[Any] = {"arbitrary_types_allowed": True}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one JSON file with a checksum, atomically; about 20 bytes a number."""
        # On one line: with a number a line it would be many times longer.
        write_sealed(path, self.kind, self._written(), indent=None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Returns what `save` wrote.

        Raises:
            InputError: if the file is missing, damaged, or of another kind.
        """
        from pydantic import TypeAdapter, ValidationError

        advice = f"give a file of {cls.__name__}.save"
        try:
            return TypeAdapter(cls).validate_python(cls._read(decoded(read_sealed(path, cls.kind))))
        except FileNotFoundError:
            raise InputError(f"path = {str(path)!r}: no such file") from None
        except DamagedFile as error:
            raise InputError(f"path = {error}; {advice}") from error
        except (ValidationError, KeyError, InputError) as error:
            raise InputError(f"path = {str(path)!r}: {error}; {advice}") from error

    def _written(self) -> dict[str, Any]:
        return encoded(self)

    @classmethod
    def _read(cls, table: dict[str, Any]) -> dict[str, Any]:
        return table


Result = TypeVar("Result", bound=SavedResult)


def reader(kind: type[Result], name: str) -> Callable[[str | os.PathLike[str]], Result]:
    """Returns the public function of this name that reads results of a kind; for the module of the kind."""

    def load(path: str | os.PathLike[str]) -> Result:
        return kind.load(path)

    load.__doc__ = (
        f"Reads what `{kind.__name__}.save` wrote.\n\n"
        "Raises:\n    InputError: if the file is missing, damaged, or no such result.\n"
    )
    load.__module__, load.__name__, load.__qualname__ = kind.__module__, name, name
    load.__annotations__["return"] = kind.__name__
    return load


def encoded(value: Any) -> Any:
    """Returns JSON values. An array becomes an object of its dtype, shape and values; float32 survives as float64. An
    object with a `table`, which says what is asked, becomes that."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.ravel().tolist()}
    if hasattr(value, "table"):
        return encoded(value.table())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encoded(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"a record has no place for a {type(value).__name__}: {value!r}")


def decoded(value: Any) -> Any:
    """Returns what `encoded` was given, with mappings for dataclasses and tuples for lists."""
    import numpy as np

    if isinstance(value, Mapping):
        if value.keys() == _ARRAY:
            found: np.ndarray = np.array(value["values"], np.dtype(value["dtype"])).reshape(value["shape"])
            return found
        return {key: decoded(one) for key, one in value.items()}
    if isinstance(value, list):
        return tuple(decoded(one) for one in value)
    return value
