"""What every room may use: errors, checks of input, strict tables, files that are whole or absent, and how a run stops.

It imports no other room. Only `programs`, `nudged` and `kept_programs` import JAX or need it.
"""
