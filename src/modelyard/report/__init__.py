"""Domain values made readable for people: tables, plots, pages and progress bars."""
