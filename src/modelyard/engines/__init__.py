"""Language models that modelyard runs itself, each with its backend and its trainer."""
