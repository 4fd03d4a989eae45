"""Training of sequence models on formal languages: configs, the loop, checkpoints, and evaluation at any length."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
