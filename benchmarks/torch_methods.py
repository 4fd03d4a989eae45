"""The rivals, in PyTorch: the same transformer with fused attention, flipped by a loop and by Captum.

PyTorch and Captum are imported here by name at run time, for they are extras that lint and types do without.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Forward = Callable[[Any], Any]
"""A torch tensor of tokens (batch, n) -> outputs (batch, width)."""


def forward_pass(transformer: Any, words: Int[np.ndarray, " n"]) -> tuple[Forward, Any]:
    """A jaxsens transformer (softmax, no layer norm, relu, last row read out) in PyTorch, and the input as (1, n).

    Queries, keys and values of all heads are one matrix product, attention is `scaled_dot_product_attention`. On the
    device that JAX computes on. The position embedding is made once, since it depends on n only.

    Raises:
        RuntimeError: if JAX computes on an accelerator that this PyTorch cannot use.
    """
    import jax

    torch = importlib.import_module("torch")
    attention = torch.nn.functional.scaled_dot_product_attention
    platform = jax.default_backend()
    if platform != "cpu" and not torch.cuda.is_available():
        raise RuntimeError(
            f"JAX computes on {platform}, which this PyTorch cannot use; set JAX_PLATFORMS=cpu"
        )
    device = "cpu" if platform == "cpu" else "cuda"

    def tensor(array: Any) -> Any:
        return torch.tensor(np.array(array), device=device)

    parameters, heads = transformer.parameters, transformer.config.heads
    embedding = tensor(parameters.embedding)
    places = tensor(parameters.position_embedding(transformer.config, len(words)))
    layers = []
    for layer in parameters.layers:
        # (heads, width, head_width) each, to one (width, 3 heads head_width)
        joined = np.stack([np.asarray(part) for part in (layer.query, layer.key, layer.value)])
        qkv = joined.transpose(2, 0, 1, 3).reshape(joined.shape[2], -1)
        out = np.asarray(layer.output).reshape(-1, qkv.shape[0])
        layers.append(tuple(tensor(part) for part in (qkv, out, layer.w1, layer.b1, layer.w2, layer.b2)))

    def forward(tokens: Any) -> Any:
        batch, n = tokens.shape
        x = embedding[tokens] + places
        for qkv, out, w1, b1, w2, b2 in layers:
            query, key, value = (x @ qkv).view(batch, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
            x = x + attention(query, key, value).transpose(1, 2).reshape(batch, n, -1) @ out
            x = x + torch.addmm(b2, torch.addmm(b1, x.view(batch * n, -1), w1).relu_(), w2).view(batch, n, -1)
        return x[:, -1]

    return forward, tensor(words[None])


def settle_threads(forward: Forward, words: Any, at_once: int) -> str:
    """Gives PyTorch one thread or as many as it has by default, whichever makes forward passes faster; says which.

    Short inputs, and machines that others use, lose more to waiting for each other than a second thread gains.
    """
    torch = importlib.import_module("torch")
    if words.is_cuda:
        return ""
    batch, found = words.repeat(at_once, 1), {}
    with torch.inference_mode():
        for threads in sorted({1, torch.get_num_threads()}):
            torch.set_num_threads(threads)
            found[threads] = _seconds_a_pass(forward, batch)
    best = min(found, key=lambda threads: found[threads])
    torch.set_num_threads(best)
    return "1 thread" if best == 1 else f"{best} threads"


def _seconds_a_pass(forward: Forward, batch: Any) -> float:
    """The mean of three passes, or of as many as fit a second: threads that stall now and then are to count."""
    forward(batch)
    passes, began = 0, time.perf_counter()
    while passes < 3 or time.perf_counter() - began < 1.0:
        forward(batch)
        passes += 1
    return (time.perf_counter() - began) / passes


def one_at_a_time(forward: Forward, words: Any) -> Callable[..., Float[np.ndarray, " flips"]]:
    """One forward pass a flip, not batched: on CPU the fastest way to use PyTorch from n = 256 on."""
    torch = importlib.import_module("torch")

    def measure(positions: Int[np.ndarray, " flips"] | None) -> Float[np.ndarray, " flips"]:
        places = range(words.shape[1] - 1) if positions is None else [int(p) for p in positions]
        with torch.inference_mode():
            output = forward(words)
            norms = []
            for place in places:
                flipped = words.clone()
                flipped[0, place] = 1 - flipped[0, place]
                norms.append(torch.linalg.vector_norm(forward(flipped) - output))
            return torch.stack(norms).cpu().numpy()

    return measure


def ablation(forward: Forward, words: Any, at_once: int) -> Callable[..., Float[np.ndarray, " flips"]]:
    """Captum's `FeatureAblation` with the other bit as baseline and `at_once` perturbations an evaluation.

    Captum subtracts outputs with their sign; given the distance from the unperturbed output as the function, what
    it subtracts is the norm of the change. The last symbol is no feature, so that the flips are the same as
    the others'.
    """
    torch = importlib.import_module("torch")
    attribution = importlib.import_module("captum.attr")
    symbols, end = words[:, :-1], words[:, -1:]

    def measure(positions: Int[np.ndarray, " flips"] | None) -> Float[np.ndarray, " flips"]:
        if positions is not None:
            raise ValueError("FeatureAblation takes all positions: it is not timed on a sample")
        with torch.inference_mode():
            output = forward(words)

            def distance(given: Any) -> Any:
                whole = torch.cat([given, end.expand(len(given), 1)], dim=1)
                return torch.linalg.vector_norm(forward(whole) - output, dim=1)

            ablated = attribution.FeatureAblation(distance)
            change = ablated.attribute(symbols, baselines=1 - symbols, perturbations_per_eval=at_once)
            return -change[0].cpu().numpy()

    return measure
