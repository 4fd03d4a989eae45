"""Every family and option beside the transformers library, on tiny random models that it saves."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import jaxsens
from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Disentangled
from tests.pretrained.folders import write_folder
from tests.pretrained.oracle import CASES, save
from tests.refusals import refusal


@pytest.mark.parametrize("sizes", [(256, 512), (6, 28), (5, 24), (4, 9), (2, 5)])
def test_buckets_of_distances_are_those_of_deberta(sizes):
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    problems = Problems("config.json")
    given = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 700,
        "relative_attention": True,
        **dict(zip(("position_buckets", "max_relative_positions"), sizes, strict=True)),
    }
    family = FAMILIES["deberta-v2"]
    scores = family.architecture(family.options(given, "config.json", problems)).score_bias
    problems.raise_if_any()
    assert isinstance(scores, Disentangled)
    theirs = module.make_log_bucket_position(torch.arange(-699, 700), *sizes).long().numpy()
    ours = scores.place(jnp.arange(-699, 700))
    np.testing.assert_array_equal(ours, np.clip(theirs + sizes[0], 0, 2 * sizes[0] - 1))


TEN = ("bert", "distilbert", "gpt2", "gpt_neox", "llama", "mistral", "modernbert", "opt", "qwen2", "t5")


@pytest.mark.parametrize("family", TEN)
def test_a_model_in_memory_is_that_of_its_folder_bit_for_bit(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    case = next(one for one in CASES if one.family == family)
    save(case, tmp_path)
    loaded = jaxsens.load_pretrained(tmp_path)
    kind = transformers.T5EncoderModel if family == "t5" else transformers.AutoModel
    made = jaxsens.from_transformers(kind.from_pretrained(tmp_path))
    ids = 6 + np.arange(9) % 8  # none is reserved, which only a tokenizer says
    np.testing.assert_array_equal(np.asarray(made(ids)), np.asarray(loaded(ids)))
    ours, theirs = (jaxsens.flip_sensitivity(one, ids, [7, 8]).norms for one in (made, loaded))
    np.testing.assert_array_equal(ours, theirs)


def test_a_model_in_memory_encodes_texts_with_its_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path, "bert")
    model, tokenizer = (
        kind.from_pretrained(tmp_path) for kind in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    made, text = jaxsens.from_transformers(model, tokenizer), "the cat sat"
    expected = jaxsens.flip_sensitivity(jaxsens.load_pretrained(tmp_path), text, [5, 6])
    for tokens in (text, tokenizer(text), tokenizer([text]), tokenizer(text, return_tensors="pt")):
        np.testing.assert_array_equal(jaxsens.flip_sensitivity(made, tokens, [5, 6]).norms, expected.norms)
    with refusal("tokens"):
        jaxsens.flip_sensitivity(made, tokenizer([text, "the"], padding=True), [5, 6])


@pytest.mark.parametrize(("model", "tokenizer"), [(3, None), (None, None), ("gpt2", 3)])
def test_what_is_no_model_in_memory_is_refused(model, tokenizer):
    with refusal(*(["model", "tokenizer"] if tokenizer else ["model"])):
        jaxsens.from_transformers(model, tokenizer)
