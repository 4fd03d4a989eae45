"""Measurements of more than the row that is read: all rows, all layers, and the attention weights."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
