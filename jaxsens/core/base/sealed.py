"""Checksummed files: a digest that detects any change, and JSON files sealed with it.

A sealed JSON file holds its kind, its content, and the digest of both. `SavedResult` is what is saved so: dataclasses,
numbers, texts and NumPy arrays, bit for bit. A measured result stores the same digest, over its metadata and arrays, in
its metadata.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import open_regular, read_within, write_text
from jaxsens.core.base.strict import typed_arguments

_MOST_BYTES = 2**31

_WIDEST = 16
"""Bytes of a number: complex128."""


class DamagedFile(Exception):
    """Raised if a file is damaged or was written for another purpose. The message names the file and the problem.

    Attributes:
        path: the file.
        why: what is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def write_sealed(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], indent: int | None = 1
) -> None:
    """Writes a JSON object with its kind and checksum, atomically; on one line if `indent` is None.

    A file that holds just this already is left as it is.
    """
    # Convert to JSON and back first, as a reader would: tuples become lists, and numeric keys become strings.
    sealed = json.loads(json.dumps({"kind": kind, "content": dict(content)}))
    write_text(path, json.dumps({**sealed, "sha256": digest(sealed)}, indent=indent) + "\n")


def read_sealed(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Returns the object written by `write_sealed`.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if the file is damaged, or holds another kind.
    """
    try:
        with open_regular(path) as file:
            stored = json.loads(read_within(file, _MOST_BYTES).decode("utf-8"))
        if not isinstance(stored, dict) or not stored.keys() >= {"kind", "content", "sha256"}:
            raise DamagedFile(path, "not written by jaxsens: it has no kind, content and checksum")
        stated = stored.pop("sha256")
        stated_kind, content = stored["kind"], stored["content"]
        sound = stated == digest(stored) and isinstance(content, dict)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(path, f"{type(error).__name__}: {error}") from error
    if not sound:
        raise DamagedFile(path, "its content does not match its checksum")
    if stated_kind != kind:
        raise DamagedFile(path, f"it holds a {stated_kind}, not a {kind}")
    return content


def digest(stored: Mapping[str, Any], arrays: Iterable[np.ndarray] = ()) -> str:
    """Returns the SHA-256 of JSON values, in any file layout, and of arrays: their dtypes, shapes and bytes."""
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    sha256 = hashlib.sha256(text.encode())
    for array in arrays:
        sha256.update(f"{array.dtype.str} {array.shape}".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


_ARRAY = {"dtype", "shape", "values"}
"""The keys of an array's object."""


class SavedResult:
    """A dataclass that is saved as a file of its own.

    Attributes:
        kind: what the file says that it holds.
    """

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[Any] = {"arbitrary_types_allowed": True}

    @typed_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one JSON file with a checksum, atomically; about 20 bytes a number."""
        # On one line: with a number a line it would be many times longer.
        write_sealed(path, self.kind, encoded(self), indent=None)

    @classmethod
    @typed_arguments
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Returns what `save` wrote.

        Raises:
            InputError: if the file is missing, damaged, or of another kind.
        """
        advice = f"give a file of {cls.__name__}.save"
        try:
            return TypeAdapter(cls).validate_python(decoded(read_sealed(path, cls.kind)))
        except FileNotFoundError:
            raise InputError.of("path", str(path), "no such file") from None
        except DamagedFile as error:
            raise InputError.of("path", str(error.path), f"{error.why}; {advice}") from error
        except (ValidationError, InputError, TypeError, ValueError, OverflowError) as error:
            raise InputError.of("path", str(path), f"{error}; {advice}") from error


def encoded(value: Any) -> Any:
    """Returns JSON values. An array becomes an object of its dtype, shape and values; float32 survives as float64. An
    object with a `table`, which says what is asked, becomes that."""
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
    if isinstance(value, Mapping):
        if value.keys() == _ARRAY:
            dtype = np.dtype(value["dtype"])
            longest = max((len(str(one)) for one in value["values"]), default=0)
            if dtype.hasobject or dtype.itemsize > max(_WIDEST, 4 * longest):
                raise ValueError(f"dtype = {dtype}: wider than what it holds")
            array: np.ndarray = np.array(value["values"], dtype).reshape(value["shape"])
            return array
        return {key: decoded(one) for key, one in value.items()}
    if isinstance(value, list):
        return tuple(decoded(one) for one in value)
    return value
