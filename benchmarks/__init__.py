"""The benchmark behind `scripts/benchmark.py`: jaxsens, PyTorch and Captum, in one run on one machine."""
