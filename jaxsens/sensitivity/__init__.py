"""Flip sensitivity: flips, engines, placement and the public call."""
