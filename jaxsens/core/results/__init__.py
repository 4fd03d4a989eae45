"""Results: one value a flip, its statistics and their accuracy, and how results are saved, joined and completed."""
