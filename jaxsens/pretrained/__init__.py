"""Published models, read from a folder in the Hugging Face layout."""
