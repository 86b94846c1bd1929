"""The commands of the command line; each module has `HELP`, `add_arguments` and `run`."""
