"""Pages of what is judged as it comes."""
