"""Benchmarks: what they measure, each figure with its spread, and where it was measured."""
