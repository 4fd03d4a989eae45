"""Transformers built from theorems: formulas compiled into weights, and networks that papers give by hand."""
