"""Hahn's Theorem 6: models are trained or set by hand, and their cross-entropy is compared with the optimum."""
