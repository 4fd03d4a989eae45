"""What a refusal names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from jaxsens import InputError


def refused(names: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Checks that a call raises an error that has these names, parted by spaces; returns its message."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    lacking = [
        name for name in names.split() if not re.search(rf"(?<![\w.]){re.escape(name)}( =|:)", message)
    ]
    assert not lacking, f"{lacking} in: {message}"
    return message
