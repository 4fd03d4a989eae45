"""How `worst_input` looks for a word, and for which: the object of `search`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.registry import Seed
from jaxsens.core.base.strict import Count, OptionalPositive, checked_by, config


@config
class Search:
    """Which word is looked for, and how.

    Args:
        objective: "max", the largest sensitivity of a word's flips, or "mean", their mean.
        fixed: {0-based position: symbol} for positions that are the same in all words and are not flipped, such as an
            end-of-sequence symbol, {n - 1: alphabet_size}. The readout position is not flipped either, but its symbol
            is searched with the others unless it is fixed.
        exact: True to enumerate all words, with one forward pass each (up to 2^24 words, if all outputs fit the memory
            budget). False to search. None to enumerate up to 2^16 words, and to search if there are more. The others
            apply to a search.
        restarts: the number of words to start from, in addition to `start`: random and structured ones in turn.
        budget: stop after this many measurements of all flips of a word; None to stop when every start has converged.
        start: words to start from, (n,) or (words, n).
        seed: seed of everything that is drawn at random.

    Raises:
        InputError: naming each unusable field; `fixed` and `start` are read with the words' length.

    >>> Search(exact=False, restarts=4, budget=100).budget
    100
    """

    objective: Annotated[Literal["max", "mean"], checked_by(inputs.choice, options=("max", "mean"))] = "max"
    fixed: Any = None
    exact: Annotated[bool | None, checked_by(inputs.choice, options=(None, True, False))] = None
    restarts: Count = 8
    budget: OptionalPositive = None
    start: Any = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.start is None:
            with collecting("Search") as problems:
                inputs.count("restarts", self.restarts, problems, least=1)
