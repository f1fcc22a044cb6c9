"""The model platform that you import."""
