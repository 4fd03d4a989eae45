"""Training of sequence models on formal languages: configs, the loop, checkpoints, evaluation at any length."""
