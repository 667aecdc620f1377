"""Pure functions, one file a memory rule; every rule offers the same forms of one function."""
