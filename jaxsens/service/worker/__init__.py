"""The worker process: what holds a device and models."""
