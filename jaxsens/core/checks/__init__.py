"""What is checked by running the model once before anything is measured: outputs, indices, functions of the output."""
