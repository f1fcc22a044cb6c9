"""A double of the servers that there are: it answers in the dialect of any of them, and with any of their faults."""
