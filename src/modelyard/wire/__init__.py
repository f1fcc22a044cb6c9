"""The clients' shapes and how they become domain values: the only place that knows them."""
