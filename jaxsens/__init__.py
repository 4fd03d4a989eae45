"""jaxsens measures how much one input symbol changes a transformer's output, and how that scales with n.

Public names are loaded on first use, so that `import jaxsens` is fast. `__init__.pyi` lists them, for this module and
for type checkers.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

_load, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("jaxsens")
    if name not in __all__:
        # Unlike Python's, lazy_loader's own message names neither the module nor the attribute.
        raise AttributeError(f"module 'jaxsens' has no attribute {name!r}", name=name)
    return _load(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
