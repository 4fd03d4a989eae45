"""Training of sequence models on formal languages: configs, the loop, checkpoints, and evaluation at any length."""
