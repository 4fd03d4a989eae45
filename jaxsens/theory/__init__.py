"""Bounds that are proved: what a flip can do to a model's output, with every constant computed."""
