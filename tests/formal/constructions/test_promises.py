"""What a promise says of a compiled network's size is what the network's config says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxsens import InputError, compile_formula
from jaxsens.formal.constructions.compiler import exact_length
from jaxsens.formal.constructions.network import Affine, Head


@pytest.mark.parametrize("text", ["Q_a & odd | !Q_a & even", "Y Q_a", "odd(#L[Q_a]) & Y Q_a"])
def test_what_a_promise_says_of_heads_and_masks_is_so_in_layers_without_attention_too(text):
    model = compile_formula(text, "ab", autoregressive=True)
    each = [model.config.layer(k) for k in range(model.config.layers)]
    assert {layer.mask for layer in each} == {"future"}
    promise = model.promise
    assert promise.heads == sum(map(len, model.heads))
    assert promise.heads + promise.idle_heads == sum(layer.heads for layer in each)
    assert (f" and {promise.idle_heads} idle," in str(promise)) == (promise.idle_heads > 0)
    for heads, layer in zip(model.heads, model.parameters.layers, strict=True):
        idle = (layer.query, layer.key, layer.value, layer.output) if not heads else ()
        assert all(not np.any(np.asarray(leaf)) for leaf in idle)


def test_kinds_without_a_rule_are_refused_by_name():
    far: Any = "farthest"
    head = Head((), Affine(), 0, far, 0.0, 1.0)
    with pytest.raises(InputError, match="exact_length has no rule for the head farthest"):
        exact_length([head], [], "temperature", False, "float64")
