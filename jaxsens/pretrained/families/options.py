"""The options of a `config.json`: each is served, known not to matter to a forward pass, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxsens.base import inputs
from jaxsens.base.errors import Problems
from jaxsens.base.strict import did_you_mean

REQUIRED: Any = object()

QUANTISED = "quantised weights are not served; get the model's weights in bfloat16, float16 or float32"

HARMLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_encoder_decoder": ((False, None), "models of two parts are not served"),
    "is_decoder": ((False, None), "a bert-like decoder is not served"),
    "add_cross_attention": ((False, None), "attention to a second input is not served"),
    "cross_attention_hidden_size": ((None,), "attention to a second input is not served"),
    "pruned_heads": (({}, None), "pruned heads are not served"),
    "per_layer_config": (({}, None), "layers of different shapes are not served"),
    "quantization_config": ((None,), QUANTISED),
    "compression_config": (
        (None,),
        "compressed weights are not served; get the model's weights in bfloat16 or float32",
    ),
    "auto_map": (
        ({}, None),
        "the folder names code of its own, which is not run; only the families' own forward passes are served",
    ),
    "partial_rotary_factor": ((1, 1.0, None), "turning a part of each head is not served"),
    "rope_interleaved": ((False, None), "only pairs that are half a head apart are served"),
    "position_embedding_type": (("absolute", None), 'only "absolute" positions are served'),
}
"""Options that change a forward pass, the values with which they do not, and why any other value is refused."""

_IRRELEVANT = """
    model_type architectures transformers_version name_or_path tokenizer_class torch_dtype dtype
    use_bfloat16 torchscript
    initializer_range initializer_factor use_cache gradient_checkpointing output_attentions output_hidden_states
    return_dict use_return_dict output_past chunk_size_feed_forward tie_encoder_decoder tie_last_hidden_states
    tf_legacy_loss
    hidden_dropout_prob attention_probs_dropout_prob classifier_dropout hidden_dropout attention_dropout dropout
    qa_dropout seq_classif_dropout resid_pdrop embd_pdrop attn_pdrop
    pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
    id2label label2id num_labels problem_type finetuning_task task_specific_params prefix
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    unsloth_version unsloth_fixed is_llama_config transformers.js_config max_sequence_length tie_weights_
"""

IRRELEVANT = frozenset(_IRRELEVANT.split())
"""Options of all families that a forward pass without training does not read."""


class Options:
    """Reads a table of options, and keeps account of those that were read.

    The methods return a stand-in after adding an error, as those of `jaxsens.base.inputs` do.

    Args:
        table: the options.
        where: what error messages call the table.
        problems: collects the errors.

    Attributes:
        failed: the options that an error was added for.
    """

    def __init__(self, table: Mapping[str, Any], where: str, problems: Problems) -> None:
        self.table, self.where, self.problems = dict(table), where, problems
        self._seen: set[str] = set()
        self.failed: set[str] = set()

    def given(self, name: str) -> bool:
        """Returns whether the option is there, and not null."""
        return self.table.get(name) is not None

    def value(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns an option as it is. Null counts as absent."""
        self._seen.add(name)
        if self.given(name):
            return self.table[name]
        if default is REQUIRED:
            self.problems.messages.append(f"{self.where}: {name}: required, but not given")
            self.failed.add(name)
            return None
        return default

    def refuse(self, name: str, remedy: str) -> None:
        """Adds the error that an option has an unusable value, unless it has one already."""
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

    def layers(self, name: str = "num_hidden_layers") -> int:
        """Returns the number of layers."""
        return self.count(name, most=inputs.MOST_LAYERS)

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

    def flag(self, name: str, default: bool) -> bool:
        """Returns true or false."""
        found = self.value(name, default)
        if not isinstance(found, bool):
            self.refuse(name, "true or false")
            return default
        return found

    def choice(self, name: str, known: Collection[str], default: Any = REQUIRED) -> Any:
        """Returns one of some names."""
        found = self.value(name, default)
        if self.given(name) and (not isinstance(found, str) or found not in known):
            self.refuse(name, f"not served; one of {', '.join(known)}")
            return next(iter(known))
        return found

    def only(self, name: str, harmless: Collection[Any], reason: str) -> None:
        """Refuses an option that has any other value than some."""
        self._seen.add(name)
        if name in self.table and not any(self.table[name] == one for one in harmless):
            self.refuse(name, reason)

    def ignore(self, *names: str) -> None:
        """Marks options that do not matter to a forward pass."""
        self._seen.update(names)

    def finish(self, family: str) -> None:
        """Refuses the options of a config.json that are not known for this family.

        Those that begin with an underscore are notes of the transformers library, and null is no option.
        """
        for name, (harmless, reason) in HARMLESS.items():
            if name not in self._seen:
                self.only(name, harmless, reason)
        self.ignore(*IRRELEVANT)
        self.finish_table(
            f"no option of {family} that is known here; remove it if its forward pass ignores it"
        )

    def finish_table(self, remedy: str) -> None:
        """Refuses the options that were not read."""
        for name, found in self.table.items():
            if name not in self._seen and found is not None and not name.startswith("_"):
                self.problems.add(f"{self.where}: {name}", found, remedy + did_you_mean(name, self._seen))
