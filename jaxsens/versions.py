"""What a result was made with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The version of jaxsens, or "unknown" where it runs from a bare source tree."""
    try:
        return version("jaxsens")
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Versions of jaxsens, jax, jaxlib, flax, numpy and Python, and the device's kind."""
    import jax

    packages = {name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    device = jax.devices()[0]
    return {
        "jaxsens": package_version(),
        **packages,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
    }
