"""`platform.chat`: completions."""
