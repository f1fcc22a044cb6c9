"""`platform.catalogue`: the models that can be asked."""
