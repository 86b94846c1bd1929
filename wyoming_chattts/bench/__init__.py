"""Benchmarks behind `wyoming-chattts bench`; each prints a Markdown table and writes JSON."""
