"""What a refusal names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxsens import InputError
from jaxsens.core.base.errors import dotted


def paths(error: InputError) -> list[str]:
    """The places of the problems of an error, as they are written."""
    return [dotted(one.path) for one in error.problems]


@contextmanager
def refusal(*names: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Checks that the block raises an error of problems at exactly these places."""
    with pytest.raises(InputError) as caught:
        yield caught
    assert {*paths(caught.value)} == {*names}, caught.value


def refused(names: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Checks that a call raises an error of problems at exactly these places, parted by spaces; returns the message.

    Without names, that it raises an error of the whole, at no place.
    """
    with refusal(*(names.split() or [""])) as caught:
        call(*arguments, **options)
    return str(caught.value)
