"""The public names of `jaxsens.formal.languages`."""

from __future__ import annotations

from jaxsens.formal.languages import *  # noqa: F403
