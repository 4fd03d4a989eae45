"""Results with arrays as checksummed JSON files: dataclasses, numbers, texts and NumPy arrays, bit for bit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxsens.errors import InputError
from jaxsens.sealed import DamagedFile, read_sealed, write_sealed

if TYPE_CHECKING:
    import numpy as np

_ARRAY = {"dtype", "shape", "values"}
"""The keys of an array's object."""


def write_record(path: str | os.PathLike[str], kind: str, record: Any) -> None:
    """Writes the fields of a dataclass as one JSON file with a checksum, atomically.

    Raises:
        TypeError: for a field that is none of the values that a record has.
    """
    write_sealed(
        path, kind, encoded(record), indent=None
    )  # One number a line would make it many times longer.


def read_record(path: str | os.PathLike[str], kind: str, advice: str) -> dict[str, Any]:
    """Returns what `write_record` wrote, arrays as arrays, dataclasses as mappings, and tuples as tuples.

    advice: completes the error, such as "give a file of WorstInput.save".

    Raises:
        InputError: if the file is missing, damaged, or of another kind.
    """
    try:
        return {name: decoded(value) for name, value in read_sealed(path, kind).items()}
    except FileNotFoundError:
        raise InputError(f"path = {str(path)!r}: no such file") from None
    except DamagedFile as error:
        raise InputError(f"path = {error}; {advice}") from error


def encoded(value: Any) -> Any:
    """Returns JSON values. An array becomes an object of its dtype, shape and values; float32 survives as float64."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.ravel().tolist()}
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
