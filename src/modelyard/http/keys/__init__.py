"""The HTTP routes and bodies of `platform.keys`."""
