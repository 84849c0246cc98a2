"""Records for the tools that people already watch their training with, each through its own library.

None of the libraries is a dependency: who asks for an export has that one, or is told how to install it.
"""
