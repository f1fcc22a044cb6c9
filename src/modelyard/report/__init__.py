"""Domain values made readable for people: tables and small plots of text."""
