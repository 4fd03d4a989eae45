"""The versions and device with which a result was computed."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Returns the version of jaxsens, or "unknown" if it runs from a source tree without installation."""
    try:
        return version("jaxsens")
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Returns the versions of jaxsens, jax, jaxlib, flax, numpy and Python, and the kind of device."""
    import jax

    device = jax.local_devices()[0]
    return {
        "jaxsens": package_version(),
        **_packages(),
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
    }


@cache
def _packages() -> dict[str, str]:
    return {name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
