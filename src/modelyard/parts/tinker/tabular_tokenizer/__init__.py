"""The tokenizer of tabular models as a folder that transformers reads; a test says how it is written."""
