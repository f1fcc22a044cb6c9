"""`modelyard docs`, `/llms.txt` and `/llms-full.txt`."""
