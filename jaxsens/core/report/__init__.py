"""Fits, tables, figures and the report made from the points of a sweep."""
