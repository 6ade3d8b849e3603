"""A testbed that proves, end to end, that GPU sharing on Kubernetes holds."""

__version__ = "0.1.0"
