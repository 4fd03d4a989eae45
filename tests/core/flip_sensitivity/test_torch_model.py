"""PyTorch modules: measured as the same network in JAX is, in batches, from several threads, with clear errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.placement.placement import local_mesh
from tests.core.flip_sensitivity.formula import mesh_of
from tests.refusals import refused

torch = pytest.importorskip("torch")

SYMBOLS, WIDTH, TOKENS = 7, 4, np.array([3, 1, 4, 1, 5, 2])


class Rows(torch.nn.Module):
    """tanh of an embedding mixed with the mean row, then a map to three outputs, a row each."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.nn.Embedding(SYMBOLS, WIDTH, dtype=dtype)
        self.head = torch.nn.Linear(WIDTH, 3, dtype=dtype)
        with torch.no_grad():
            for part in self.parameters():
                part.copy_(torch.randn(part.shape, generator=generator, dtype=torch.float64))
        self.seen: list[tuple[int, ...]] = []

    def forward(self, ids: Any) -> Any:
        assert ids.dtype == torch.int64
        self.seen.append(tuple(ids.shape))
        x = self.embedding(ids)
        return self.head(torch.tanh(x + x.mean(1, keepdim=True)))


class Mean(Rows):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids).mean(1)


class Wrapped(torch.nn.Module):
    """A module whose output is made of that of `Rows`."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.rows, self.wrap = Rows(), wrap

    def forward(self, ids: Any) -> Any:
        return self.wrap(self.rows(ids))


@dataclass(frozen=True)
class InJax:
    """The network of `Rows`, in JAX."""

    dtype: str
    mean: bool = False

    def __call__(self, ids: Any) -> Any:
        table, weight, bias = (
            jnp.asarray(part.detach().numpy()) for part in Rows(torch.float64).parameters()
        )
        x = table[ids]
        rows = (jnp.tanh(x + x.mean(0)) @ weight.T + bias).astype(self.dtype)
        return rows.mean(0) if self.mean else rows


def measured(model: Any, **options: Any) -> jaxsens.FlipSensitivity:
    return jaxsens.flip_sensitivity(model, TOKENS, options.pop("flips", SYMBOLS), **options)


class Padded(Mean):
    """A mean over the positions that are not padding (id 0). It cannot read an input that is all padding."""

    def forward(self, ids: Any) -> Any:
        keep = (ids != 0).unsqueeze(-1)
        if not keep.any(1).all():
            raise ValueError("an input is all padding")
        return (Rows.forward(self, ids) * keep).sum(1) / keep.sum(1)


def test_a_module_is_tried_on_the_input_itself():
    module = Padded().eval()
    result = measured(jaxsens.from_torch(module), flips=jaxsens.Substitute([1, 2, 3], positions=range(4)))
    with torch.no_grad():
        before = module(torch.tensor(TOKENS[None]))
        for position, symbol, norm in zip(result.positions, result.symbols, result.norms, strict=True):
            word = torch.tensor(TOKENS[None])
            word[0, int(position)] = int(symbol)
            assert norm == pytest.approx(float((module(word) - before).norm()), rel=1e-4, abs=1e-6)
    assert len(result) == 9
    assert "vmap" in str(jaxsens.explain(jaxsens.from_torch(module), 6, flips=3))


class Unpaired(Mean):
    """Reads only inputs that hold the symbol 2 and no 0."""

    def forward(self, ids: Any) -> Any:
        if (ids == 0).any() or not (ids == 2).any(1).all():
            raise ValueError("an input with a 0, or without a 2")
        return Rows.forward(self, ids).mean(1)


@pytest.mark.parametrize("flips", [jaxsens.Delete(), jaxsens.Insert([1]), jaxsens.Repeat(2)], ids=str)
def test_inputs_of_other_lengths_are_tried_on_the_input_too(flips):
    """The input with a symbol more or less, and not one that is made up."""
    word, module = np.array([2, 3, 1, 1, 2]), Unpaired().eval()
    found = jaxsens.flip_sensitivity(jaxsens.from_torch(module), word, flips=flips, readout="mean")
    assert len(found) == 5
    assert np.isfinite(found.norms).all()


def test_a_module_is_measured_as_the_same_network_in_jax_and_read_where_the_readout_says():
    model = jaxsens.from_torch(Rows().eval())
    refused("readout", measured, model)
    tried = [(model, False, readout) for readout in (0, "last", "mean")]
    for one, mean, readout in (*tried, (jaxsens.from_torch(Mean().eval()), True, "mean")):
        result, expected = measured(one, readout=readout), measured(InJax("float32", mean), readout=readout)
        np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-4, atol=1e-6)
        assert (result.engine.name, result.dtype) == ("vmap", "float32")


def test_float64_is_measured_as_such_and_bfloat16_is_widened_exactly():
    result = measured(jaxsens.from_torch(Rows(torch.float64).eval()), readout=1)
    with jax.enable_x64(True):
        expected = measured(InJax("float64"), readout=1)
    assert result.norms.dtype == np.float64
    np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-12)
    narrow = Wrapped(lambda rows: rows.mean(1).to(torch.bfloat16)).eval()
    values = np.asarray(jaxsens.from_torch(narrow)(TOKENS))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, narrow(torch.tensor(TOKENS[None])).float().detach().numpy()[0])


@pytest.mark.parametrize("wrap", [lambda rows: rows.to(torch.bfloat16), lambda rows: rows.half()])
def test_flips_whose_change_is_below_the_rounding_of_16_bits_are_not_resolved(wrap):
    with pytest.warns(jaxsens.PrecisionWarning):
        result = measured(jaxsens.from_torch(Wrapped(lambda rows: 100 + wrap(100 + rows.mean(1))).eval()))
    truth = measured(jaxsens.from_torch(Wrapped(lambda rows: 200 + rows.mean(1)).eval()))
    assert np.all(np.abs(result.norms - truth.norms) <= result.resolution)
    assert not result.resolved.all()


def test_a_batch_is_one_call_and_threads_take_turns_without_waiting_for_each_other_forever():
    module = Mean().eval()
    result = measured(jaxsens.from_torch(module), readout="mean")
    assert len(result) == 36
    assert local_mesh().size > 1  # this ran on all of the tests' devices, and now in threads
    module.seen.clear()
    one = jaxsens.flip_sensitivity(
        jaxsens.from_torch(module),
        TOKENS,
        SYMBOLS,
        readout="mean",
        placement=jaxsens.Placement(mesh_of(1), batch_size=9),
    )
    assert module.seen.count((9, 6)) == 4
    np.testing.assert_allclose(one.norms, result.norms, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_batches_do_not_lock_up(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        long = np.arange(2000) % SYMBOLS
        result = jaxsens.flip_sensitivity(
            jaxsens.from_torch(Mean().eval()),
            long,
            flips=jaxsens.Substitute(SYMBOLS, sample=256),
            placement=jaxsens.Placement(mesh_of(1), batch_size=64),
        )
    finally:
        torch.set_num_threads(before)
    assert len(result) == 256


def test_the_same_module_compiles_once():
    module = Mean().eval()
    measured(jaxsens.from_torch(module), readout="mean")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", lambda *a, **k: pytest.fail("compiled again"))
        measured(jaxsens.from_torch(module), readout="mean")
    assert jaxsens.from_torch(module) == jaxsens.from_torch(module) != jaxsens.from_torch(Mean().eval())


def test_other_weights_cannot_be_resumed_and_the_same_can():
    first, second = Mean().eval(), Mean().eval()
    one, same = (measured(jaxsens.from_torch(module), readout="mean") for module in (first, second))
    assert one.asked is not None
    assert one.asked == same.asked
    with torch.no_grad():
        second.head.bias += 1
    assert measured(jaxsens.from_torch(second), readout="mean").asked != one.asked


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda rows: {"a": rows[0], "b": rows + 1}, "b"),
        (lambda rows: (rows[0], rows + 1), 1),
        (lambda rows: torch.return_types.max((rows + 1, rows)), 0),
    ],
)
def test_one_of_several_outputs_is_chosen(wrap, output):
    model = jaxsens.from_torch(Wrapped(wrap).eval(), output=output)
    expected = jaxsens.from_torch(Wrapped(lambda rows: rows + 1).eval())
    np.testing.assert_array_equal(model(TOKENS), expected(TOKENS))


def test_a_model_of_transformers_is_measured_in_its_hidden_states_or_logits():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=SYMBOLS, n_positions=8, n_embd=WIDTH, n_layer=1, n_head=1)
    body, head = (kind(config).eval() for kind in (transformers.GPT2Model, transformers.GPT2LMHeadModel))
    ids = torch.tensor(TOKENS[None])
    with torch.no_grad():
        hidden, logits = body(ids).last_hidden_state[0], head(ids).logits[0]
    model = jaxsens.from_torch(body, output="last_hidden_state")
    np.testing.assert_allclose(model(TOKENS), hidden, atol=1e-6)
    np.testing.assert_allclose(jaxsens.from_torch(head, output="logits")(TOKENS), logits, atol=1e-6)
    refused("tokens", jaxsens.flip_sensitivity, model, [1, 9], 3, readout="last")
    refused("model", model, np.zeros(9, int))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda rows: {"a": rows}, None),
        (lambda rows: (rows, rows), None),
        (lambda rows: {"a": rows}, "b"),
        (lambda rows: rows, "a"),
        (lambda rows: rows.argmax(-1), None),
        (lambda rows: None, None),
        (lambda rows: rows.transpose(0, 1), None),
        (lambda rows: rows.sum(), None),
        (lambda rows: rows.double(), None),
        (lambda rows: rows @ torch.zeros(5, 1), None),
    ],
)
def test_an_output_that_cannot_be_measured_is_refused(wrap, output):
    said = refused("model", measured, jaxsens.from_torch(Wrapped(wrap).eval(), output=output), readout=0)
    assert "Wrapped" in said


@pytest.mark.needs("first_order")
def test_what_is_no_module_ready_to_be_measured_is_refused():
    from_torch: Any = jaxsens.from_torch
    refused("module", from_torch, lambda ids: ids)
    refused("model", from_torch, Rows())
    partly = Wrapped(lambda rows: rows).eval()
    partly.rows.head.train()
    assert "its part 'rows.head' is in training mode" in refused("model", from_torch, partly)
    refused("output", from_torch, Rows().eval(), output=1.5)
    refused("model", from_torch, Rows().eval().to("meta"))
    model = from_torch(Rows().eval())
    model.module.train()
    refused("model", measured, model, readout=0)
    with pytest.raises(jaxsens.EngineRefusal):
        measured(jaxsens.from_torch(Rows().eval()), readout=0, engine="first-order")


def test_ids_beyond_the_embedding_are_refused_before_anything_is_measured():
    model = jaxsens.from_torch(Rows().eval())
    said = refused("flips", jaxsens.flip_sensitivity, model, TOKENS, SYMBOLS + 1, readout=0)
    assert "with symbol 7 at position 1 of input 0" in said
    refused("model", jaxsens.flip_sensitivity, model, [1, 9, 2], 3, readout=0)

    class Known(Rows):
        def get_input_embeddings(self) -> Any:
            return self.embedding

    known = jaxsens.from_torch(Known().eval())
    refused("tokens", jaxsens.flip_sensitivity, known, [1, 9], 3, readout=0)


def test_explain_counts_the_operations_of_a_pass():
    told = jaxsens.explain(jaxsens.from_torch(Mean().eval()), 6, flips=SYMBOLS, readout="mean")
    assert told.operations == 37 * 2 * 6 * WIDTH * 3
