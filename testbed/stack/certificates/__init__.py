"""The certificates of a deployment: made, kept while they serve, renewed by themselves."""
