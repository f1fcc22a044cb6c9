"""`platform.chat`: completions, whole and streamed."""
