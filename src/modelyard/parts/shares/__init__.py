"""The shares of entities in the workers, as the host sets them."""
