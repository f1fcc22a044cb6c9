"""The HTTP routes and bodies of `platform.evaluations`."""
