"""Transformers built from theorems: formulas compiled into weights, and the networks that papers give by hand."""

from __future__ import annotations
