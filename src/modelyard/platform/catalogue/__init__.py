"""`platform.catalogue`: the models that requests can name."""
