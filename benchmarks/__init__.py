"""The benchmark behind `scripts/benchmark.py`: jaxsens beside PyTorch and Captum, in one run on one machine."""
