"""The transformer: its config, its parameters, its layers as pure functions, and the Flax NNX module that holds them.

`layered` is the protocol by which engines look into any model whose attention is visible, this one included.
"""
