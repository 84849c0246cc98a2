"""What a browser may do with the page: nothing but draw it and run the one script that is ours.

All values are escaped when they are put in; the Content-Security-Policy (W3C CSP Level 3) stands behind that, so that
a value that got through could neither run nor send anything.
"""

from __future__ import annotations

import base64
import hashlib


def script_source(script: str) -> str:
    """The source expression that allows the inline `script`, to the byte, and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def content_security_policy(script: str) -> str:
    """The policy of a page whose only script is `script`; styles may stand in the page, since SVG brings some."""
    rules = {
        "default-src": "'none'",
        "script-src": script_source(script),
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
