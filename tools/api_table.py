"""`python -m tools.api_table --out FILE` records what calls of `flip_sensitivity` return; `--compare` compares two.

A row is a call: a kind of model, an engine, an edit and a measure, on one short word. It has the values, which flips
are resolved and which engine measured, or the first line of the refusal. Each engine measures each edit by L2, a
substitution by each measure, and each edit by one further measure; of modules of others, some of these.

    python -m tools.api_table --out now.json
    PYTHONPATH=../then python tools/api_table.py --out then.json      # of another checkout
    python -m tools.api_table --compare then.json now.json            # exit code 1 where any differ

Only the public API is called. `tools/recorded/api_table.json` is the table of the commit that it names.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SYMBOLS, WIDTH, OUTPUTS, LONGEST = 5, 8, 4, 16
WORD = (0, 3, 1, 2, 2, 0, 4, 1, 3, 0, 2, 1)
"""What the networks here read. jaxsens models read it with their end-of-sequence symbol last."""

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Differences of values that `--compare` lets through: a part of the value, and of the largest in its row."""


# Models


def weights(shape: tuple[int, ...], name: str, scale: float = 0.6) -> np.ndarray:
    """Normal weights that are a function of their name."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return (scale * generator.standard_normal(shape)).astype(np.float32)


def network() -> dict[str, np.ndarray]:
    """The parameters of a small network: embeddings, positions, two maps."""
    return {
        "embedding": weights((SYMBOLS, WIDTH), "embedding"),
        "positions": weights((LONGEST, WIDTH), "positions"),
        "inner": weights((WIDTH, WIDTH), "inner"),
        "outer": weights((WIDTH, OUTPUTS), "outer"),
    }


def own_model(_folder: Path) -> Any:
    """A transformer of jaxsens, two layers of softmax attention."""
    import jaxsens

    config = jaxsens.TransformerConfig(
        alphabet_size=SYMBOLS, width=16, heads=2, layers=2, feed_forward=16, positions="sinusoidal"
    )
    return jaxsens.Transformer(config, seed=0)


def function_model(_folder: Path) -> Any:
    """A pair of a function and its parameters."""
    import jax.numpy as jnp

    def mean_network(parameters: Any, tokens: Any) -> Any:
        rows = parameters["embedding"][tokens] + parameters["positions"][: tokens.shape[0]]
        return jnp.tanh(rows @ parameters["inner"]).mean(0) @ parameters["outer"]

    return mean_network, network()


def nnx_model(_folder: Path) -> Any:
    """A module of Flax NNX."""
    import jax.numpy as jnp
    from flax import nnx

    class MeanNetwork(nnx.Module):
        def __init__(self) -> None:
            for name, value in network().items():
                setattr(self, name, nnx.Param(jnp.asarray(value)))

        def __call__(self, tokens: Any) -> Any:
            own: Any = self
            rows = own.embedding[...][tokens] + own.positions[...][: tokens.shape[0]]
            return jnp.tanh(rows @ own.inner[...]).mean(0) @ own.outer[...]

    return MeanNetwork()


def equinox_model(_folder: Path) -> Any:
    """A module of Equinox."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    class MeanNetwork(eqx.Module):
        embedding: jax.Array
        positions: jax.Array
        inner: jax.Array
        outer: jax.Array

        def __call__(self, tokens: Any) -> Any:
            rows = self.embedding[tokens] + self.positions[: tokens.shape[0]]
            return jnp.tanh(rows @ self.inner).mean(0) @ self.outer

    return MeanNetwork(**{name: jnp.asarray(value) for name, value in network().items()})


def torch_model(_folder: Path) -> Any:
    """A module of PyTorch, by `from_torch`."""
    import torch  # pyright: ignore[reportMissingImports]

    import jaxsens

    class MeanNetwork(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in network().items():
                self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))

        def forward(self, ids: Any) -> Any:
            own: Any = self
            rows = own.embedding[ids] + own.positions[: ids.shape[-1]]
            return torch.tanh(rows @ own.inner).mean(-2) @ own.outer

    return jaxsens.from_torch(MeanNetwork().eval())


def published_model(folder: Path) -> Any:
    """A BERT with random weights, read from a folder."""
    import jaxsens

    write_published(folder, "bert", layers=2, longest=LONGEST)
    return jaxsens.load_pretrained(folder, output="logits")


MODELS: Mapping[str, Callable[[Path], Any]] = {
    "own": own_model,
    "function": function_model,
    "NNX": nnx_model,
    "Equinox": equinox_model,
    "PyTorch": torch_model,
    "published": published_model,
}
"""What is measured, by kind."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "slept",
    "##ing",
    "dog",
    "in",
    "sun",
    "is",
    "warm",
    "old",
)


def write_published(folder: Path, family: str, layers: int, longest: int) -> None:
    """Writes a small model with random weights in the Hugging Face layout: "bert" or "gpt2"."""
    from safetensors.numpy import save_file

    ids = {symbol: k for k, symbol in enumerate((*_SPECIAL, *_WORDS))}
    config, shapes = {"bert": _bert, "gpt2": _gpt2}[family](len(ids), layers, longest)
    tensors = {
        name: weights(shape, name) + np.float32(len(shape) == 1 and name.endswith("weight"))
        for name, shape in shapes.items()
    }
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    around.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[one], "content": one, **added} for one in _SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": around,
            "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}), "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _bert(symbols: int, layers: int, longest: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The config of a BERT, and the shapes of its tensors."""
    config = {"vocab_size": symbols, "hidden_size": 8, "num_hidden_layers": layers, "num_attention_heads": 2}
    config |= {"intermediate_size": 12, "hidden_act": "gelu", "max_position_embeddings": longest}
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (symbols, 8),
        "bert.embeddings.position_embeddings.weight": (longest, 8),
        "bert.embeddings.token_type_embeddings.weight": (2, 8),
        **_affine("bert.embeddings.LayerNorm"),
        **_affine("cls.predictions.transform.dense", 8),
        **_affine("cls.predictions.transform.LayerNorm"),
        "cls.predictions.decoder.bias": (symbols,),
        "cls.predictions.bias": (symbols,),
    }
    for k in range(layers):
        layer = f"bert.encoder.layer.{k}"
        for name in ("query", "key", "value"):
            shapes |= _affine(f"{layer}.attention.self.{name}", 8)
        shapes |= _affine(f"{layer}.attention.output.dense", 8) | _affine(
            f"{layer}.attention.output.LayerNorm"
        )
        shapes |= {f"{layer}.intermediate.dense.weight": (12, 8), f"{layer}.intermediate.dense.bias": (12,)}
        shapes |= {f"{layer}.output.dense.weight": (8, 12), f"{layer}.output.dense.bias": (8,)}
        shapes |= _affine(f"{layer}.output.LayerNorm")
    return {**config, "type_vocab_size": 2, "layer_norm_eps": 1e-12}, shapes


def _gpt2(symbols: int, layers: int, longest: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The config of a GPT-2, and the shapes of its tensors."""
    config = {"vocab_size": symbols, "n_embd": 8, "n_layer": layers, "n_head": 2, "n_positions": longest}
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (symbols, 8),
        "transformer.wpe.weight": (longest, 8),
        **_affine("transformer.ln_f"),
    }
    for k in range(layers):
        layer = f"transformer.h.{k}"
        shapes |= _affine(f"{layer}.ln_1") | _affine(f"{layer}.ln_2")
        for name, inner, outer in (
            ("attn.c_attn", 8, 24),
            ("attn.c_proj", 8, 8),
            ("mlp.c_fc", 8, 32),
            ("mlp.c_proj", 32, 8),
        ):
            shapes |= {f"{layer}.{name}.weight": (inner, outer), f"{layer}.{name}.bias": (outer,)}
    return config, shapes


def _affine(name: str, inner: int | None = None) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (8,) if inner is None else (8, inner), f"{name}.bias": (8,)}


# Calls


def cases() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The engines, edits and measures of the table, by name."""
    import jax
    import jax.numpy as jnp

    import jaxsens

    engines = {
        "auto": "auto",
        "vmap": "vmap",
        "incremental": "incremental",
        "difference": "difference",
        "first-order": jaxsens.FirstOrder(verify=4),
    }
    edits = {
        "substitute": jaxsens.Substitute([0, 1, 2]),
        "neighbours": jaxsens.Neighbours(2),
        "mask": jaxsens.Mask(2),
        "delete": jaxsens.Delete(),
        "insert": jaxsens.Insert([1, 3]),
        "repeat": jaxsens.Repeat(times=2),
        "pairs": jaxsens.Pairs([(1, 2), (4, 1), (4, 3), (7, 0)]),
        "groups": jaxsens.Substitute([0, 2], groups=[(1, 2), (4,), (6, 9)]),
        "sample": jaxsens.Substitute([0, 1, 2], sample=6, seed=1),
    }
    measures = {
        "l2": "l2",
        "l1": "l1",
        "linf": jaxsens.LInf(outputs=[0, 2]),
        "cosine": "cosine",
        "kl": "kl",
        "decision": "decision",
        "function": jaxsens.Function(lambda y: jax.nn.log_softmax(y)[1]),
        "comparison": jaxsens.Comparison(lambda y, new: jnp.abs(y - new).max()),
        "log-probability": jaxsens.LogProbability(1),
    }
    return engines, edits, measures


def pairs(kind: str, edits: Mapping[str, Any], measures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The edits and measures that are measured together: each edit by L2, substitutions by each measure, and each edit
    by one further measure. Of the modules of others, which run as functions do, only each edit by L2, and one measure
    that calls a function of the output."""
    if kind in ("NNX", "Equinox", "PyTorch"):
        return [*((edit, "l2") for edit in edits), ("substitute", "function")]
    further = [*measures][1:]
    found = {
        **dict.fromkeys((edit, "l2") for edit in edits),
        **dict.fromkeys(("substitute", one) for one in measures),
    }
    found |= dict.fromkeys((edit, further[k % len(further)]) for k, edit in enumerate([*edits][1:]))
    return [*found]


def word_of(kind: str) -> np.ndarray:
    """The word that a kind of model reads."""
    if kind == "own":
        return np.array([*WORD[:-1], SYMBOLS], np.int32)  # its last symbol ends the sequence
    if kind == "published":
        return np.array([2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3], np.int32)  # between [CLS] and [SEP]
    return np.array(WORD, np.int32)


def edit_of(kind: str, name: str, edit: Any) -> Any:
    """The edit for a kind of model: published ones insert words, whose ids are larger."""
    import jaxsens

    if kind != "published":
        return edit
    words = {
        "substitute": jaxsens.Substitute([5, 7, 9]),
        "mask": jaxsens.Mask(),
        "insert": jaxsens.Insert([6, 8]),
        "pairs": jaxsens.Pairs([(1, 9), (4, 6), (4, 10), (7, 5)]),
        "groups": jaxsens.Substitute([5, 9], groups=[(1, 2), (4,), (6, 9)]),
        "sample": jaxsens.Substitute([5, 7, 9], sample=6, seed=1),
    }
    return words.get(name, edit)


def row(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call returns, as the table has it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return {"refusal": re.sub(r"0x[0-9a-f]+", "0x", line)}
    return {
        "values": [float(value) for value in result.values],
        "resolved": "".join("-x"[bool(one)] for one in result.resolved),
        "engine": result.engine.name,
    }


def recorded(report: Callable[[str], Any] = print) -> dict[str, dict[str, Any]]:
    """Every row of the table. A kind of model whose library is missing has none, and is reported."""
    import jaxsens

    engines, edits, measures = cases()
    rows: dict[str, dict[str, Any]] = {}
    for kind, build in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = build(Path(folder))
            except ImportError as error:
                report(f"{kind}: not recorded: {error}")
                continue
            for engine, options in engines.items():
                start = time.process_time()
                for edit, measure in pairs(kind, edits, measures):
                    key = f"{kind} / {engine} / {edit} / {measure}"
                    flips = edit_of(kind, edit, edits[edit])
                    call = partial(jaxsens.flip_sensitivity, model, word_of(kind), flips, measures[measure])
                    rows[key] = row(partial(call, engine=options, progress=False))
                report(f"{kind} / {engine}: {time.process_time() - start:.0f} s of a core")
    return rows


# Files


def commit_of(root: Path) -> str:
    """The commit of a checkout, with a + after it if its package has been changed since."""
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "jaxsens"], capture_output=True, text=True)
    return head.stdout.strip() + "+" * bool(changed.stdout.strip()) if not head.returncode else "unknown"


def write(path: Path, table: Mapping[str, Any]) -> None:
    """Writes a table, a line a row, compressed if the name ends in .gz; under another name first."""
    head = json.dumps({key: value for key, value in table.items() if key != "rows"})[1:-1]
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table["rows"].items())
    data = f'{{{head}, "rows": {{\n{lines}\n}}}}\n'.encode()
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    os.replace(temporary, path)


def read(path: Path) -> dict[str, Any]:
    """Reads a table."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> dict[str, list[str]]:
    """In what the rows of two tables differ, a line each, by kind of difference."""
    found: dict[str, list[str]] = {kind: [] for kind in ("rows", "refusals", "engine", "values", "resolved")}
    found["rows"] = [f"{key}: in one table only" for key in sorted(old.keys() ^ new.keys())]
    for key in [key for key in old if key in new]:
        one, other = old[key], new[key]
        if "refusal" in one or "refusal" in other:
            texts = [row.get("refusal", f"measured by {row.get('engine')}") for row in (one, other)]
            if texts[0] != texts[1]:
                found["refusals"].append(f"{key}:\n    {texts[0]}\n    {texts[1]}")
            continue
        if one["engine"] != other["engine"]:
            found["engine"].append(f"{key}: {one['engine']} -> {other['engine']}")
        if len(one["values"]) != len(other["values"]):
            found["values"].append(f"{key}: {len(one['values'])} flips -> {len(other['values'])}")
            continue
        values, others = np.array(one["values"]), np.array(other["values"])
        allowed = relative * np.abs(values) + absolute * np.abs(values).max(initial=0)
        wrong = ~((np.abs(values - others) <= allowed) | (np.isnan(values) & np.isnan(others)))
        if wrong.any():
            k = int(np.nanargmax(np.where(wrong, np.abs(values - others), -1)))
            found["values"].append(
                f"{key}: {wrong.sum()} of {len(values)}, such as flip {k}: {values[k]:.9g} -> {others[k]:.9g}"
            )
        if one["resolved"] != other["resolved"]:
            found["resolved"].append(f"{key}: {one['resolved']} -> {other['resolved']}")
    return found


def compare(paths: tuple[Path, Path], relative: float, absolute: float) -> int:
    """Prints in what two tables differ; returns 1 if they do."""
    old, new = (read(path) for path in paths)
    print(f"{old['commit']} (jax {old['jax']}) -> {new['commit']} (jax {new['jax']})")
    found = differences(old["rows"], new["rows"], relative, absolute)
    for kind, lines in found.items():
        print(f"{kind}: {len(lines)} differ" if lines else f"{kind}: the same")
        print("".join(f"  {line}\n" for line in lines), end="")
    return int(any(found.values()))


def main() -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="record into this file: .json or .json.gz")
    what.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two files")
    parser.add_argument("--relative", type=float, default=RELATIVE, help=f"of each value; default {RELATIVE}")
    parser.add_argument(
        "--absolute", type=float, default=ABSOLUTE, help=f"of the largest value of a row; default {ABSOLUTE}"
    )
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(tuple(arguments.compare), arguments.relative, arguments.absolute)
    import jax

    import jaxsens

    root = Path(jaxsens.__file__).parents[1]
    table = {"commit": commit_of(root), "jax": jax.__version__, "rows": recorded()}
    write(arguments.out, table)
    refusals = sum("refusal" in one for one in table["rows"].values())
    print(f"{len(table['rows'])} rows, {refusals} of them refusals, of {table['commit']}: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
