"""The pytest plugin (docs/pytest.md): ``plugin`` has what pytest finds, the rest is behind it.

Nothing is imported here: pytest loads the plugin in every session.
"""
