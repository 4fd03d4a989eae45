"""The families of published models: each maps its options and its tensors' names onto `Architecture`."""
