"""One measurement from the command line: of a model table, or of a published model on a text."""
