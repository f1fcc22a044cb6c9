"""Training data in the public forms: CSV, JSON arrays, prompts with completions, preferences, ShareGPT, Alpaca."""
