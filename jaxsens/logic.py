"""The public names of `jaxsens.formal.logic`."""

from __future__ import annotations

from jaxsens.formal.logic import *  # noqa: F403
