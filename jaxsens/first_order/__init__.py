"""The first-order engine: the flipped row is followed exactly, what other rows pass on is linear. Any depth, O(n^2)."""
