"""Experiments that train: length generalisation; and the curves of one training."""
