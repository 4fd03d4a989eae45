"""Which flips are measured: `jaxsens.asked.flips` applied to a model and its words, and the table of flips."""
