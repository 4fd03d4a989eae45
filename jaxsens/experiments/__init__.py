"""Sweeps over input length: strict configs, one file a point, resumable, and what a sweep directory holds."""
