"""Changes that rounding leaves without digits: how they are recognised, and how they are measured in wider numbers."""
