"""The sharing stack: what runs on production nodes. Imports neither card nor lab."""
