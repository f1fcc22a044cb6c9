"""HTTP as a function from a request value to a response value: no sockets, no framework."""
