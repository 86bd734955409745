"""The command line: what it prints and returns; the work itself is in the rooms it calls."""
