"""What every room may use: errors, checks of input, strict tables, files that are whole or absent, and how a run stops.

It imports no other room and loads JAX only inside functions.
"""
