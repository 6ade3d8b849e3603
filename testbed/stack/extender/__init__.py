"""The scheduler extender: decides from a ledger in memory, binds with one call."""
