"""Sweeps over input length: strict configs, one file a point, and what a sweep directory holds."""
