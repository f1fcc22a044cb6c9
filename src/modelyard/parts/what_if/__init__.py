"""What stored traffic would have cost, been answered and been scored like with another model or other prices."""
