"""Estimates of every flip's effect, and the flips that are measured exactly to check them."""
