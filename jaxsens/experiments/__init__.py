"""Experiments: runs over many points, read from strict configs, resumable, with a report.

An experiment is one room with its config, its measurement and its report. `jobs` runs any of them; `sweep` and
`report` are the largest, and the other experiments use them. `own_models` is the Python call `jaxsens.sweep`.
"""
