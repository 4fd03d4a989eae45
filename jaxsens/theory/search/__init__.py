"""Search for the input that one symbol moves the most."""
