"""Decides whether failed tests may be tried once more: `python -m tests.tools.again`, within `make test AGAIN=yes`.

Only a test that starts processes can fail for reasons of the machine, and only a few of them at a time. Each name that
is tried again is written to `tests/tried_again.txt`; one that already stands there is a fault to find.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tests.fast_tier import is_fast
from tests.tools.imports import ROOT

MOST = 3
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TRIED = ROOT / "tests" / "tried_again.txt"


def refusal(failed: Sequence[str], tried: Sequence[str]) -> str | None:
    """Return why `failed` may not be tried again, or None. `tried` holds the names of earlier runs."""
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, and at most {MOST} are tried again"
    if fast := [name for name in failed if is_fast(name)]:
        return f"{fast[0]} starts no process, so it fails for a reason of its own"
    if known := [name for name in failed if name in tried]:
        return f"{known[0]} was tried again before ({TRIED.name}): find the fault"
    return None


def main() -> int:
    """0 where the failed tests may be tried again, after writing down their names."""
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    tried = TRIED.read_text(encoding="utf-8").splitlines()
    if reason := refusal(failed, tried):
        print(f"not tried again: {reason}")
        return 1
    with TRIED.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in failed)
    print(f"tried again, to be kept in tests/{TRIED.name}: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
