"""The processes that the test's own process has started."""

import psutil


def living_children(word: str) -> list[psutil.Process]:
    """Those, and theirs, that have `word` in their command lines; one that is ending has none."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
