"""Programs that run inside the namespaces.

They are copied into the cluster's state folder and run by the system's Python,
as an id that can read neither the user's home nor this package: so they import
the standard library only, and nothing of the testbed.
"""
