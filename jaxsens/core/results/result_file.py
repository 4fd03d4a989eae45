"""Parquet files of columns and metadata with one checksum, as written by `FlipSensitivity.save`.

Parquet's own checksums, which are also written, cover only the pages of numbers: neither the metadata nor the footer,
which says how to read the pages. The digest therefore covers the data as a reader sees it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import atomic_path, open_regular
from jaxsens.core.base.sealed import digest
from jaxsens.core.base.text import in_words

Columns = Mapping[str, np.ndarray]
"""Columns by name, in the order of the digest."""

_METADATA_KEY = b"jaxsens"
_LARGEST_METADATA = 2**31 - 1
"""Bytes. Arrow's default when reading, 100 MB, is too small for the tokens of some results."""

_PLAIN_BYTES, _COMPRESSED = 2**30, 64
"""A file may have as many bytes in memory as the first, and so many for each of its own."""

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError)
"""Exceptions that reading a damaged file raises, besides ArrowException and OSError."""


def write_columns(
    path: str | os.PathLike[str],
    columns: Columns,
    description: Mapping[str, Any],
    further: Mapping[str, Any],
) -> None:
    """Writes columns, a description and further metadata, atomically.

    Raises:
        InputError: for metadata that JSON cannot represent, or whose name is reserved for the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    problems = Problems("save")
    for name in sorted({"result", "checksum"} & further.keys()):
        problems.add(name, further[name], "this name is reserved for the file's own metadata; use another")
    problems.raise_if_any()
    try:  # as a reader will find them: tuples become lists
        metadata = json.loads(json.dumps({"result": description, **further}))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"save: metadata: {error}; give values that JSON can represent") from error
    columns = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    sealed = {**metadata, "checksum": digest(metadata, columns.values())}

    def stored(values: np.ndarray) -> Any:
        numbers = pa.array(values.reshape(-1))
        return numbers if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(numbers, values.shape[1])

    table = pa.table({name: stored(values) for name, values in columns.items()})
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(sealed, sort_keys=True).encode()})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_columns(
    path: str | os.PathLike[str], names: tuple[str, ...], further: tuple[str, ...] = ()
) -> tuple[Columns, dict[str, Any], dict[str, Any]]:
    """Returns the named columns, the description and the further metadata written by `write_columns`.

    Of the columns `further`, those in the file are returned. The checksum shows if one was removed.

    Raises:
        InputError: if the file is missing, damaged, or holds something else.
    """
    import pyarrow as pa

    try:
        return _read(path, names, further)
    except InputError:  # intact, but something else, or no regular file
        raise
    except FileNotFoundError:
        raise InputError.of("path", str(path), "no such file") from None
    except (*_DAMAGE, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError.of("path", str(path), f"cannot be read ({error})") from error
        why = f"damaged, or not a Parquet file ({type(error).__name__}: {error}); measure it again"
        raise InputError.of("path", str(path), why) from error


def _read(
    path: str | os.PathLike[str], names: tuple[str, ...], further: tuple[str, ...]
) -> tuple[Columns, dict[str, Any], dict[str, Any]]:
    import pyarrow.parquet as pq

    with open_regular(path) as file:
        opened = pq.ParquetFile(
            file, page_checksum_verification=True, thrift_string_size_limit=_LARGEST_METADATA
        )
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
        if (text := (schema.metadata or {}).get(_METADATA_KEY)) is None:
            raise InputError(f"path = {str(path)!r}: a Parquet file, but not a jaxsens result")
        present = [*names, *(name for name in further if name in schema.names)]
        wide = sum(_bytes(schema.field(name).type) for name in present)
        groups = (opened.metadata.row_group(k) for k in range(opened.num_row_groups))
        stated = max(rows * wide, sum(group.total_byte_size for group in groups))
        if stated > (most := _PLAIN_BYTES + _COMPRESSED * os.fstat(file.fileno()).st_size):
            raise ValueError(f"{in_words(stated)} in a file of its size; at most {in_words(most)}")
        table = opened.read(columns=present)
    metadata = json.loads(text)
    stated = metadata.pop("checksum", None)
    columns = {name: _array(table.column(name)) for name in present}
    if stated != digest(metadata, columns.values()):
        raise ValueError("its content does not match its checksum")
    return columns, metadata.pop("result"), metadata


def _bytes(kind: Any) -> int:
    """Returns the bytes of a value of a column: a number, or a list of them of one length."""
    if hasattr(kind, "list_size"):
        return kind.list_size * _bytes(kind.value_type)
    return max(1, kind.bit_width // 8)


def _array(column: Any) -> np.ndarray:
    """Returns the array that a column holds."""
    size = getattr(column.type, "list_size", None)
    return (
        column.to_numpy() if size is None else column.combine_chunks().flatten().to_numpy().reshape(-1, size)
    )
