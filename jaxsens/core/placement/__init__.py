"""Runs an engine over many flips: in blocks, within a memory budget, over devices and processes, with progress."""
