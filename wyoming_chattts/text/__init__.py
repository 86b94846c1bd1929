"""The front end: text as written, in pieces → segments in their spoken form. Pure functions."""
