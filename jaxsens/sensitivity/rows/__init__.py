"""Measurements of more than the row that is read: all rows, all layers, and the attention weights."""
