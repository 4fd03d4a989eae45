"""JAX and the modules that need it, imported at their first use: help and the reading of arguments do without them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Deferred:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


if TYPE_CHECKING:
    import jax as jax
    import jax.numpy as jnp

    from jaxsens.core.measures import change_of as change_of
    from jaxsens.core.measures import formulas as formulas
else:
    jax, jnp = _Deferred("jax"), _Deferred("jax.numpy")
    change_of, formulas = (_Deferred(f"jaxsens.core.measures.{name}") for name in ("change_of", "formulas"))
