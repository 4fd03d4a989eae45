"""A PyTorch module as a function that JAX can call: slow, exact, and without derivatives."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import is_count
from jaxsens.core.base.strict import naming_arguments

_CALLING = threading.Lock()
"""PyTorch spreads one call over all cores, and modules may keep state between calls: one call at a time."""

_SYMBOLS = {"cpu": 2**11}
_SYMBOLS_ELSEWHERE = 2**16
"""Symbols in a batch by default, by the kind of device that the module is on."""


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch module as a callable from tokens to an array. Made by `from_torch`.

    Two of the same module and output are equal, and compile once.

    Attributes:
        module: the module, in eval mode.
        output: the name or index of the output to measure; None if it is the only one.
        kinds: the shape and dtype of the output by the length of the input, for the lengths tried so far.
        roundings: the eps of the tensors that it returned so far.
    """

    module: Any
    output: str | int | None = None
    kinds: dict[int, jax.ShapeDtypeStruct] = field(default_factory=dict, compare=False, repr=False)
    roundings: set[float] = field(default_factory=set, compare=False, repr=False)

    def __call__(self, tokens: Any) -> Any:
        """Returns the module's output on one input (n,), or on several (..., n), without PyTorch's batch axis.

        Within a JAX transformation it is a `jax.pure_callback`, which `jax.vmap` calls once for all inputs. Otherwise
        it is a NumPy array.

        Raises:
            InputError: for a module in training mode, one that raises an exception, or an output that is no tensor
                with one entry an input.
        """
        if not isinstance(tokens, Tracer):
            return self._run(tokens)
        kind = self.output_kind(tokens.shape[-1])
        if kind.dtype == np.float64 and jax.numpy.result_type(float) != np.float64:
            raise InputError.note(
                "model",
                f"{self.name} returns float64, while JAX is set to 32 bits: call this within "
                "jax.enable_x64(True), or let the module return float32",
            )
        if kind.dtype == np.float64:
            # In a thread of its own, JAX would round the result to the global setting's 32 bits: pass the bits.
            bits = jax.ShapeDtypeStruct((*kind.shape, 2), np.uint32)
            halves = jax.pure_callback(self._bits, bits, tokens, vmap_method="expand_dims")
            return jax.lax.bitcast_convert_type(halves, jax.numpy.float64)
        return jax.pure_callback(self._run, kind, tokens, vmap_method="expand_dims")

    @property
    def name(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    @property
    def dtype(self) -> str:
        """ "float64" if any parameter or buffer is float64, otherwise "float32"."""
        kinds = {str(part.dtype) for part in _tensors(self.module).values()}
        return "float64" if "torch.float64" in kinds else "float32"

    @property
    def eps(self) -> float:
        """The largest eps of its parameters, buffers and outputs: it may round to 16 bits what is measured in 32."""
        import torch  # pyright: ignore[reportMissingImports]

        parts = (part.dtype for part in _tensors(self.module).values() if part.is_floating_point())
        return max([*(torch.finfo(dtype).eps for dtype in parts), *self.roundings, 0.0])

    @property
    def vocabulary_size(self) -> int | None:
        """The number of symbols in the input embedding of a Hugging Face model; None for any other module."""
        try:
            table = getattr(self.module, "get_input_embeddings", lambda: None)()
        except NotImplementedError:
            return None
        size = getattr(table, "num_embeddings", None)
        return size if is_count(size, 1) else None

    @property
    def batch_symbols(self) -> int:
        """The number of symbols in a batch by default."""
        return _SYMBOLS.get(_device(self.module), _SYMBOLS_ELSEWHERE)

    def output_kind(self, n: int) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of the output on one input of length n.

        A length that was not tried before runs the module on two inputs of the ids 0 and 1 in turn: neither is all
        padding, which many modules cannot read.
        """
        if n not in self.kinds:
            self._try(_two_symbols(n))
        return self.kinds[n]

    def learn(self, word: np.ndarray) -> None:
        """Runs the module on two copies of an input (n,), so that `output_kind` need not make inputs up."""
        if len(word) not in self.kinds:
            self._try(np.stack([word, word]))

    def _try(self, ids: np.ndarray) -> None:
        output = self._run(ids)
        self.kinds[ids.shape[1]] = jax.ShapeDtypeStruct(output.shape[1:], output.dtype)

    def operations(self, n: int) -> float:
        """Returns the floating-point operations of a pass on one input of length n, counted during such a pass."""
        from torch.utils.flop_counter import FlopCounterMode  # pyright: ignore[reportMissingImports]

        with FlopCounterMode(display=False) as counter:
            self._run(_two_symbols(n)[0])
        return float(counter.get_total_flops())

    def digest(self) -> str:
        """Returns the SHA-256 of the module's description, parameters and buffers, and of the chosen output."""
        digest = hashlib.sha256(f"{self.module!r} {self.output!r}".encode())
        for name, part in _tensors(self.module).items():
            array = as_numpy(part)
            digest.update(f"{name} {part.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def check(self) -> None:
        """Rejects a module that cannot be measured as it is.

        Raises:
            InputError: for one in training mode, or without weights in memory.
        """
        for name, part in self.module.named_modules():
            if part.training:
                where = f"its part {name!r} is" if name else "it is"
                raise InputError.of(
                    "model",
                    self.name,
                    f"{where} in training mode, in which dropout is random: call module.eval() first",
                )
        if _device(self.module) == "meta":
            raise InputError.of(
                "model", self.name, "it is on the device meta, without weights: load them first"
            )

    def _bits(self, tokens: Any) -> np.ndarray:
        """Returns float64 outputs as pairs of 32-bit words, in a new last axis."""
        outputs = self._run(tokens)
        return np.ascontiguousarray(outputs)[..., None].view(np.uint32)

    def _run(self, tokens: Any) -> np.ndarray:
        """Runs the module on tokens (..., n), all in one call."""
        import torch  # pyright: ignore[reportMissingImports]

        self.check()
        ids = np.asarray(tokens).astype(np.int64)
        batch = torch.from_numpy(ids.reshape(-1, ids.shape[-1])).to(_device(self.module))
        try:
            with _CALLING, torch.no_grad():
                output = self.module(batch)
        except Exception as error:
            message = (str(error).strip().splitlines() or [""])[0].rstrip(".")
            raise InputError.note(
                "model",
                f"{self.name}, called on ids from {ids.min()} to {ids.max()}, int64 of shape "
                f"{tuple(batch.shape)}, raised {type(error).__name__}: {message}. Give ids in its vocabulary and "
                "inputs that are no longer than it reads; a module that takes other arguments needs a module around it",
            ) from error
        tensor = _tensor(output, self.output, self.name)
        self.roundings.add(torch.finfo(tensor.dtype).eps)
        outputs = as_numpy(tensor)
        if outputs.ndim == 0 or outputs.shape[0] != len(batch):
            raise InputError.note(
                "model",
                f"{self.name} returns shape {outputs.shape} for {len(batch)} inputs of length {ids.shape[-1]}; "
                "the first axis must be that of the inputs (batch_first=True)",
            )
        return outputs.reshape(*ids.shape[:-1], *outputs.shape[1:])


@naming_arguments
def from_torch(module: Any, *, output: str | int | None = None) -> TorchModel:
    """Returns a model for `flip_sensitivity` that runs a PyTorch module, outside JAX: slow and exact.

    The module is called as module(ids), with ids (batch, n) of int64 on its device, in eval mode and without
    gradients, and returns one entry an input: (batch, outputs), or rows (batch, n, outputs) of which `readout=` selects
    one. Every flip is a forward pass in PyTorch: there are no derivatives, so no first-order estimates, and nothing is
    shared between flips. `jaxsens.load_pretrained` reads many architectures into JAX, which is faster.

    Flips are passed in batches, one call each: `Placement(batch_size=)` sets their number; by default 2048 symbols on a
    CPU, 65536 on a GPU, in all inputs of a batch. PyTorch's memory is not part of `memory_budget`: it is what the
    module needs for one batch, because calls take turns, each on all of PyTorch's threads (`torch.set_num_threads`).

    The arithmetic is the module's: float64 modules are measured in float64; outputs in float16 or bfloat16 are
    converted to float32. Flips whose change is below its rounding (1e-3 and 1e-2 of the output) are not `resolved`.

    Args:
        module: a `torch.nn.Module` in eval mode. For one that takes further arguments, write a module around it.
        output: which output to measure if there are several: a key or field, or an index of a tuple; of a Hugging Face
            model "logits" or "last_hidden_state".

    Raises:
        InputError: if it is not a module, is in training mode or on the device meta, or `output` is unusable. Calls of
            the model raise it if the module raises, or returns something else than described.

    >>> model = jaxsens.from_torch(module.eval())  # doctest: +SKIP
    >>> jaxsens.flip_sensitivity(model, ids, flips=[1, 2, 3], readout=0)  # doctest: +SKIP
    """
    torch = sys.modules.get("torch")
    with collecting("from_torch") as problems:
        if torch is None or not isinstance(module, torch.nn.Module):
            problems.add("module", type(module).__name__, "give a torch.nn.Module")
        if output is not None and not isinstance(output, str) and not is_count(output):
            problems.add("output", output, "the name of an output, or its index in a tuple, from 0")
    model = TorchModel(module, output)
    model.check()
    return model


def _two_symbols(n: int) -> np.ndarray:
    """Returns ids (2, n): 0, 1, 0, 1, ... and 1, 0, 1, 0, ..."""
    return (np.arange(2)[:, None] + np.arange(n)) % 2


def _tensors(module: Any) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _device(module: Any) -> str:
    return next((str(part.device) for part in _tensors(module).values()), "cpu")


def as_numpy(tensor: Any) -> np.ndarray:
    """Returns a tensor's values; bfloat16 and float16, which NumPy lacks or loses digits in, as float32."""
    import torch  # pyright: ignore[reportMissingImports]

    narrow = tensor.dtype in (torch.bfloat16, torch.float16)
    return (tensor.detach().float() if narrow else tensor.detach()).cpu().numpy()


def _tensor(output: Any, chosen: str | int | None, name: str) -> Any:
    """Returns the tensor to measure among a module's outputs.

    Raises:
        InputError: if there is no output of the chosen name, none was chosen of several, or it is no tensor of real
            numbers.
    """
    import torch  # pyright: ignore[reportMissingImports]

    parts: dict[Any, Any] = {None: output}
    if isinstance(output, Mapping):
        parts = dict(output)
    elif isinstance(output, tuple | list):
        named = zip(getattr(output, "_fields", ()), output, strict=False)
        parts = {**dict(enumerate(output)), **dict(named)}
    if chosen not in parts:
        choices = " or ".join(f"output={part!r}" for part in parts)
        what = f"{name} returns a {type(output).__name__}, which has no output {chosen!r}"
        raise InputError.note("model", f"{what}; give jaxsens.from_torch {choices}")
    output = parts[chosen]
    if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.itemsize < 2:
        what = str(output.dtype) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError.note(
            "model", f"{name} returns {what}; a tensor of floats of 16 bits or more is needed"
        )
    return output
