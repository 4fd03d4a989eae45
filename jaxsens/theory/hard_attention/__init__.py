"""Theorem 1 of Hahn (2020) as an algorithm: restrictions, their certificates, and the words that a model confuses."""
