"""Which flips are measured: `jaxsens.core.flips.flips` applied to a model and its words, and the table of flips."""
