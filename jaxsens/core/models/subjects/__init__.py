"""Any model as a pure function of parameters and tokens, and why something is no model."""
