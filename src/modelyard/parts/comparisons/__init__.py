"""Several runs compared with each other, and one run by its slices, corrected for how much is tested."""
