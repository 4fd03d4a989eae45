"""LSTM, simple RNN and convolution once more, in NumPy with explicit loops: what the package is tested against."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsens.training.baselines import ConvolutionConfig, LSTMConfig


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def loop_layer(config: Any, layer: Any, x: list[np.ndarray]) -> list[np.ndarray]:
    """One layer, position by position."""
    n, d, rows = len(x), config.width, []
    if isinstance(config, ConvolutionConfig):
        left = (config.kernel_width - 1) // 2
        for i in range(n):
            total = np.array(layer.bias)
            for w in range(config.kernel_width):
                if 0 <= i + w - left < n:
                    total = total + x[i + w - left] @ layer.kernel[w]
            rows.append(np.maximum(total, 0))
        return rows
    h, c = np.zeros(d), np.zeros(d)
    for i in range(n):
        z = [x[i] @ layer.input[g] + h @ layer.recurrent[g] + layer.bias[g] for g in range(len(layer.bias))]
        if isinstance(config, LSTMConfig):
            c = logistic(z[1]) * c + logistic(z[0]) * np.tanh(z[2])
            h = logistic(z[3]) * np.tanh(c)
        else:
            h = np.tanh(z[0])
        rows.append(h)
    return rows


def loop_output(config: Any, parameters: Any, tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """(output, activations) on one input."""
    x = [parameters.embedding[token] for token in tokens]
    for layer in parameters.layers:
        x = loop_layer(config, layer, x)
    if isinstance(config, ConvolutionConfig):
        row = np.mean(x, axis=0) @ parameters.output + parameters.output_bias
    elif config.readout == "mean":
        row = np.mean(x, axis=0)
    else:
        row = x[len(x) - 1 if config.readout == "last" else config.readout]
    if config.logits is not None:
        row = row @ parameters.head + parameters.head_bias
    return row, np.array(x)
