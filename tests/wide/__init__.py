"""Evaluates a traced JAX program in NumPy, in wider numbers than it was traced with: float64, or MPFR of any width."""
