"""Which words are to be measured, as far as it can be judged without the model that reads them."""

from __future__ import annotations

from jaxsens.errors import Faults


def check_words(word: str | None, n: int | None, count: int, faults: Faults) -> None:
    """Notes what is wrong with the input that is asked for, whatever the model."""
    if (word is None) == (n is None):
        faults.add("--tokens", word, "give either --tokens, a word, or --n, the length of a random input")
    if n is not None and n < 2:
        faults.add("--n", n, "at least 2: the position that is read out is not flipped")
    if count < 1:
        faults.add("--inputs", count, "at least 1")
    if word is not None and count != 1:
        faults.add("--inputs", count, "1 with --tokens, which is one input")
