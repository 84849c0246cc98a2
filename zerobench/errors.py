"""Programs that call zerobench catch `zerobench.errors.UserError`: the name stays."""

from zerobench.common.errors import UserError

__all__ = ["UserError"]
