"""Experiments that train: length generalisation, and sharpness against the length; and the curves of one training."""
