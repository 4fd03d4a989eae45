"""Transformers and baselines: configs, parameters, pure layer functions and Flax NNX modules.

`parts` are the choices a layer is made of, `networks` is what all networks share and the baselines, `transformer` is
the paper's network as pure functions and as a module. Above them stand the tables of configs and the bridge to PyTorch.
"""
