"""Transformers and baselines: configs, parameters, pure layer functions and Flax NNX modules."""
