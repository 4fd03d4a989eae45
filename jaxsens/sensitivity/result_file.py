"""A Parquet file of columns and metadata under one checksum, which `FlipSensitivity.save` writes.

Parquet's own checksums, which are written too, cover the pages of numbers only: neither the metadata nor the footer,
which says how the pages are to be read. The digest is therefore of what a reader gets to see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsens.errors import Faults, InputError
from jaxsens.files import atomic_path
from jaxsens.sealed import digest

Columns = Mapping[str, np.ndarray]
"""Columns by name, in the order in which they enter the digest."""

_METADATA_KEY = b"jaxsens"
_LARGEST_METADATA = 2**31 - 1
"""Bytes. Arrow's default when reading, 100 MB, is less than the tokens of some results take."""

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError)
"""What reading a damaged file raises, ArrowException and OSError beside these."""


class NotAResult(InputError):
    """The file is sound, but holds something else."""


def write_columns(
    path: str | os.PathLike[str], columns: Columns, description: Mapping[str, Any], further: Mapping[str, Any]
) -> None:
    """Writes columns, a description and further metadata, atomically.

    Raises:
        InputError: for metadata that JSON cannot hold, or under a name that the file needs itself.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = _as_json(description, further)
    columns = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    sealed = {**metadata, "checksum": digest(metadata, columns.values())}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(sealed, sort_keys=True).encode()})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_columns(
    path: str | os.PathLike[str], names: tuple[str, ...]
) -> tuple[Columns, dict[str, Any], dict[str, Any]]:
    """The columns of these names, the description and the further metadata that `write_columns` wrote.

    Raises:
        InputError: if the file is missing, damaged, or holds something else.
    """
    import pyarrow as pa

    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path = {path!r}: the name of a file that FlipSensitivity.save wrote")
    try:
        return _read(path, names)
    except NotAResult:
        raise
    except FileNotFoundError:
        raise InputError(f"path = {str(path)!r}: no such file") from None
    except (*_DAMAGE, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"path = {str(path)!r}: cannot be read ({error})") from error
        raise InputError(
            f"path = {str(path)!r}: damaged, or not a Parquet file ({type(error).__name__}: {error}); measure it again"
        ) from error


def _read(
    path: str | os.PathLike[str], names: tuple[str, ...]
) -> tuple[Columns, dict[str, Any], dict[str, Any]]:
    import pyarrow.parquet as pq

    with open(path, "rb") as file:
        table = pq.ParquetFile(
            file, page_checksum_verification=True, thrift_string_size_limit=_LARGEST_METADATA
        ).read()
    text = (table.schema.metadata or {}).get(_METADATA_KEY)
    if text is None:
        raise NotAResult(f"path = {str(path)!r}: a Parquet file, but not a jaxsens result")
    metadata = json.loads(text)
    stated = metadata.pop("checksum", None)
    columns = {name: table.column(name).to_numpy() for name in names}
    if stated != digest(metadata, columns.values()):
        raise ValueError("its content does not have the checksum it states")
    return columns, metadata.pop("result"), metadata


def _as_json(description: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as a reader will find them: tuples are lists there."""
    faults = Faults("save")
    for name in sorted({"result", "checksum"} & further.keys()):
        faults.add(name, further[name], "this name is taken by the file's own metadata; give another")
    faults.raise_if_any()
    try:
        return json.loads(json.dumps({"result": description, **further}))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"save: metadata: {error}; give what JSON can hold") from error
