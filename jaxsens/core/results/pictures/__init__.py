"""A result by position: as a plot, as coloured text, as a page of HTML."""
