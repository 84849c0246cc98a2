"""A worker that fails before it could say anything."""

import a_module_that_does_not_exist  # type: ignore[import-not-found]  # noqa: F401 -- that is its whole point
