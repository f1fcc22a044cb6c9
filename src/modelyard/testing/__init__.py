"""What modelyard promises, runnable: contracts for what you implement, doubles and strategies for your own tests."""
