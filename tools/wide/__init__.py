"""Evaluates a traced JAX program in NumPy, in MPFR numbers of any width."""
