"""The options of a `config.json`: each is served, known not to matter to a forward pass, or refused by name."""

from __future__ import annotations

import difflib
import json
import math
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.strict import did_you_mean

REQUIRED: Any = object()

QUANTISED = "quantised weights are not served; get the model's weights in bfloat16, float16 or float32"

HARMLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_decoder": ((False, None), "a bert-like decoder is not served"),
    "add_cross_attention": ((False, None), "attention to a second input is not served"),
    "per_layer_config": (({}, None), "layers of different shapes are not served"),
    "quantization_config": ((None,), QUANTISED),
    "compression_config": (
        (None,),
        "compressed weights are not served; get the model's weights in bfloat16 or float32",
    ),
}
"""Options that change a forward pass, the values with which they do not, and why any other value is refused."""

_IRRELEVANT = """
    model_type architectures transformers_version name_or_path torch_dtype dtype initializer_range initializer_factor
    init_std initializer_cutoff_factor use_cache gradient_checkpointing output_attentions output_hidden_states
    return_dict chunk_size_feed_forward is_encoder_decoder
    hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob hidden_dropout
    attention_dropout dropout dropout_rate qa_dropout seq_classif_dropout resid_pdrop embd_pdrop attn_pdrop
    embed_dropout embedding_dropout resid_dropout residual_dropout mlp_dropout layerdrop cls_dropout pooler_dropout
    summary_type summary_use_proj summary_activation summary_first_dropout summary_last_dropout
    summary_proj_to_labels pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id
    decoder_start_token_id id2label label2id num_labels problem_type output_router_logits router_aux_loss_coef
    router_jitter_noise device_map revision token is_causal
"""

IRRELEVANT = frozenset(_IRRELEVANT.split())
"""Options that the library reads, and that change no row of a forward pass without training."""

LIBRARY: dict[str, Any] = json.loads(Path(__file__).with_name("library.json").read_text("utf-8"))
"""What the transformers library reads of a config.json: "shared" names, and by family the "defaults" of its options,
their "aliases", and the other names that it "reads". `tools/pretrained_library.py` makes it of the library's source."""


class Options:
    """Reads a table of options, and keeps account of those that were read.

    The methods return a stand-in after adding an error, as those of `jaxsens.core.base.inputs` do.

    Args:
        table: the options.
        where: what error messages call the table.
        problems: collects the errors.
        family: the family whose options they are: those that are absent have the library's defaults.

    Attributes:
        names: what the family calls options that have another name in most families.
        failed: the options that an error was added for.
        read: the names that the library reads.
    """

    def __init__(
        self, table: Mapping[str, Any], where: str, problems: Problems, family: str | None = None
    ) -> None:
        self.table, self.where, self.problems = dict(table), where, problems
        self._seen: set[str] = set()
        self.failed: set[str] = set()
        known: dict[str, Any] = {} if family is None else LIBRARY["families"][family]
        self._given, self._defaults = frozenset(self.table), known.get("defaults", {})
        self.names: dict[str, str] = dict(known.get("aliases", {}))
        self.read = (
            {*LIBRARY["shared"], *known["reads"], *self._defaults, *self.names} if known else set[str]()
        )
        for other, name in self.names.items():
            if other in self.table:
                found = self.table.pop(other)
                if self.table.setdefault(name, found) != found:
                    self.refuse(name, f"{other}, the same option, is {found!r}; keep one of them")
        self.table = {**self._defaults, **self.table}

    def given(self, name: str) -> bool:
        """Returns whether the option is there, and not null."""
        return self.table.get(self.named(name)) is not None

    def named(self, name: str) -> str:
        """Returns the family's own name of an option."""
        return self.names.get(name, name)

    def value(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns an option as it is. Null counts as absent."""
        name = self.named(name)
        self._seen.add(name)
        if self.given(name):
            return self.table[name]
        if default is REQUIRED:
            absent = "null" if name in self.table else "not given"
            if name not in self.failed:
                self.problems.note(f"{self.where}: {name}", f"required, but {absent}")
            self.failed.add(name)
            return None
        return default

    def refuse(self, name: str, remedy: str) -> None:
        """Adds the error that an option has an unusable value, unless it has one already."""
        name = self.named(name)
        self._seen.add(name)
        if name not in self.failed:
            self.failed.add(name)
            self.problems.add(f"{self.where}: {name}", self.table.get(name), remedy)

    def count(self, name: str, default: Any = REQUIRED, least: int = 1, most: int = inputs.LARGEST_ID) -> Any:
        """Returns a whole number of at least `least` and at most `most`, or the default."""
        found = self.value(name, default)
        if not self.given(name):
            return least if found is None and default is REQUIRED else found
        if not inputs.is_count(found, least) or found > most:
            self.refuse(name, inputs.count_wanted(found, least, most))
            return least
        return int(found)

    def layers(self) -> int:
        """Returns the number of layers."""
        return self.count("num_hidden_layers", most=inputs.MOST_LAYERS)

    def number(self, name: str, default: Any = REQUIRED, *, least: float = 0.0) -> Any:
        """Returns a finite number greater than `least`, or the default."""
        found = self.value(name, default)
        if not self.given(name):
            return 1.0 if found is None and default is REQUIRED else found
        if not inputs.is_real(found) or not math.isfinite(found) or found <= least:
            self.refuse(name, f"a number above {least:g}")
            return 1.0
        return float(found)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Returns a list of so many numbers above 0."""
        found = self.value(name)
        if self.given(name) and not (
            isinstance(found, list)
            and len(found) == count
            and all(inputs.is_real(one) and math.isfinite(one) and one > 0 for one in found)
        ):
            self.refuse(name, f"a list of {count} numbers above 0")
        return (1.0,) * count if name in self.failed else tuple(map(float, found))

    def entries(self, name: str, known: Mapping[str, Any], layers: int, default: Any = None) -> list[Any]:
        """Returns what the name that a list has for each layer stands for."""
        found = self.value(name, default)
        if found is None:
            return []
        if not isinstance(found, list) or any(not isinstance(one, str) or one not in known for one in found):
            self.refuse(name, f"a list of {' and '.join(known)}; others are not served")
        elif len(found) != layers:
            self.refuse(name, f"a list of num_hidden_layers = {layers} entries")
        else:
            return [known[one] for one in found]
        return [next(iter(known.values()))] * layers

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Returns true or false."""
        found = self.value(name, default)
        if not isinstance(found, bool):
            self.refuse(name, "true or false")
            return default is True
        return found

    def choice(self, name: str, known: Collection[str], default: Any = REQUIRED) -> Any:
        """Returns one of some names."""
        found = self.value(name, default)
        if self.given(name) and (not isinstance(found, str) or found not in known):
            self.refuse(name, f"not served; one of {', '.join(known)}")
        return next(iter(known)) if name in self.failed else found

    def only(self, name: str, harmless: Collection[Any], reason: str) -> None:
        """Refuses an option that has any other value than some."""
        self._seen.add(name)
        if name in self.table and not any(self.table[name] == one for one in harmless):
            self.refuse(name, reason)

    def ignore(self, *names: str) -> None:
        """Marks options that do not matter to a forward pass."""
        self._seen.update(names)

    def finish(self, family: str) -> None:
        """Refuses the options that the library reads for this family, and that are not served.

        What it does not read cannot change a row. A warning names those that look like a misspelt option.
        """
        for name, (harmless, reason) in HARMLESS.items():
            if name not in self._seen and name in {*self.read, "compression_config"}:
                self.only(name, harmless, reason)
        for name in sorted(self.read & self._given - self._seen - IRRELEVANT):
            if not name.startswith("_") and self.table.get(name) not in (None, self._defaults.get(name)):
                self.refuse(name, f"the library reads it for {family}, and other values are not served")
        for name in sorted(self._given - self.read - self._seen):
            if name.startswith("_"):
                continue
            meant = difflib.get_close_matches(name, self.read - self._given, n=1, cutoff=0.9)
            if meant:
                told = f"no option of {family}, so nothing reads it; did you mean {meant[0]!r}?"
                warnings.warn(f"{self.where}: {name}: {told}", stacklevel=2)

    def finish_table(self, remedy: str) -> None:
        """Refuses the options that were not read."""
        for name, found in self.table.items():
            if name not in self._seen and found is not None and not name.startswith("_"):
                self.problems.add(f"{self.where}: {name}", found, remedy + did_you_mean(name, self._seen))
