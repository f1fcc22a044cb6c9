"""What an operator asks for: sums of usage, budgets, and jobs that are read, paused and tried again."""
