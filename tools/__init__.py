"""Tools for work on jaxsens: what to measure before and after a change. Each runs as `python -m tools.NAME`."""
