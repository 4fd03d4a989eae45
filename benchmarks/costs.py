"""Operations and bytes that an algorithm cannot do without, and the time they take at the machine's best rates."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.options import ESTIMATES, FEED_FORWARD, HEADS, WIDTH, Case

FLOAT = 4
"""Bytes of a float32."""

CANDIDATES = 16
"""Hidden units a row that the folded form of the difference engine treats one by one."""


@dataclass(frozen=True)
class Rates:
    """What the machine reaches in float32: operations a second in a large matrix product, bytes a second in a copy
    (read and written bytes both count)."""

    operations: float
    bytes: float


@dataclass(frozen=True)
class Cost:
    """Of all flips of one input. A multiplication and an addition are two operations; an exponential is one."""

    operations: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        """The physical limit: nothing that does these operations on this traffic can be faster."""
        return max(self.operations / rates.operations, self.bytes / rates.bytes)


def cost(case: Case) -> Cost:
    """Operations and bytes of a case's algorithm, whatever its implementation adds to them."""
    flips = case.n - 1
    if case.method == "difference":
        return _difference(flips, case.layers, case.n)
    if case.method == "incremental":
        return _incremental(flips, case.layers, case.n)
    one = _one_row_read(case.layers, case.n) if case.method == "vmap" else _forward_pass(case.layers, case.n)
    return Cost(flips * one.operations, flips * one.bytes)


def forward_pass_operations(layers: int, n: int) -> float:
    """Operations of one forward pass."""
    return _forward_pass(layers, n).operations


def first_order_operations(case: Case) -> float:
    """Operations of a first-order estimate, as its engine counts them."""

    from benchmarks.methods import model
    from jaxsens.core.base.programs import PLATFORMS
    from jaxsens.core.engines.request import Request
    from jaxsens.core.explain import planned_run
    from jaxsens.core.measures import L2, LogProbability
    from jaxsens.first_order.first_order import FirstOrder

    sketch, scalar = ESTIMATES[case.method]
    asked = (LogProbability(0), FirstOrder()) if scalar else (L2(), FirstOrder(sketch=sketch or WIDTH))
    run = planned_run(model(case.layers), case.n, Request(None, *asked), PLATFORMS["cpu"])
    return run.cost.operations(1, run.flips)


def _parameters(layers: int) -> float:
    return layers * (4 * WIDTH**2 + 2 * WIDTH * FEED_FORWARD)


def _forward_pass(layers: int, n: int) -> Cost:
    """Projections 8 n d^2, scores and weighted sums 4 n^2 d, exponentials n^2 H, per-position map 4 n d d_ff.

    Bytes: the steps of a layer (three projections, attention, output, per-position map) each read and write
    their (n, d) arrays once, 12 n d numbers; scores and hidden units stay on chip.
    """
    d, hidden = WIDTH, FEED_FORWARD
    layer = 8 * n * d**2 + 4 * n**2 * d + n**2 * HEADS + 4 * n * d * hidden
    return Cost(layers * layer, FLOAT * (layers * 12 * n * d + _parameters(layers)))


def _one_row_read(layers: int, n: int) -> Cost:
    """A forward pass whose last layer computes only the readout row: keys and values 4 n d^2, scores and sum 4 n d.

    Bytes of the last layer: its input, keys and values, 3 n d numbers.
    """
    d, whole = WIDTH, _forward_pass(layers - 1, n)
    row = 4 * n * d**2 + 4 * n * d + n * HEADS + 4 * d**2 + 4 * d * FEED_FORWARD
    return Cost(whole.operations + row, whole.bytes + FLOAT * (3 * n * d + _parameters(1)))


def _incremental(flips: int, layers: int, n: int) -> Cost:
    """Once: a forward pass on the input. Per flip: a forward pass, with another first layer.

    That is, a row: the moved key's score and its change 4 d, the head's closed form 4 d, output 2 d^2, per-position
    map 4 d d_ff. Bytes: 4 n d numbers, the first layer's queries, heads' outputs, input and output.
    """
    d = WIDTH
    rest = _one_row_read(layers - 1, n)
    first = n * (8 * d + 2 * d**2 + 4 * d * FEED_FORWARD + HEADS)
    once = _forward_pass(layers, n)
    return Cost(
        once.operations + flips * (first + rest.operations),
        once.bytes + flips * (rest.bytes + FLOAT * 4 * n * d),
    )


def _difference(flips: int, layers: int, n: int) -> Cost:
    """Once: a forward pass on the input, and with more than one layer the maps W_j, 2 n d^2 d_ff.

    Per flip: the moved row of layer 1 (keys and values before and after, output, per-position map).

    Per flip and row, from two layers on: the moved key's score and its change 4 d, the head's closed form 4 d, the
    per-position map folded to one matrix, 2 d (d + K) + 2 K d. In the last layer, per flip and row and for the
    readout row only: the change of the score 2 d + 2 H d, the two weighted sums 2 d + 2 H d.
    Middle layers do whole rows: projections 8 n d^2, scores before and after and two weighted sums 8 n^2 d,
    exponentials 2 n^2 H, per-position map 4 n d d_ff.

    Bytes: what is prepared of the input, read once: W_j, (d, d + K) numbers a position, with more than one layer, and
    the (n, d) arrays; and, where there is a middle layer, 12 n d numbers for each flip.
    """
    d, hidden, n_d = WIDTH, FEED_FORWARD, n * WIDTH
    per_flip = 10.0 * d**2 + 4 * d * hidden
    prepared = layers * 6.0 * n_d + _parameters(layers)
    once, streamed = _forward_pass(layers, n).operations, 0.0
    if layers > 1:
        first = 8 * d + 2 * d * (d + CANDIDATES) + 2 * CANDIDATES * d + HEADS
        last = 4 * d + 4 * HEADS * d + HEADS
        per_flip += n * (first + last)
        once += 2 * n * d**2 * hidden
        prepared += n_d * (d + CANDIDATES)
    if layers > 2:
        middle = 8 * n * d**2 + 8 * n**2 * d + 2 * n**2 * HEADS + 4 * n * d * hidden
        per_flip += (layers - 2) * middle
        streamed = (layers - 2) * 12.0 * n_d
    return Cost(once + flips * per_flip, FLOAT * (prepared + flips * streamed))
