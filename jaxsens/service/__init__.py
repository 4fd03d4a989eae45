"""The service: models that stay loaded at an address, measured on request."""
