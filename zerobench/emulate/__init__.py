"""A user's own command on an emulated GPU: what it needs, whether that fits, and which changes make it fit.

Nothing here imports torch: ranks are processes of their own (zerobench.tracking.emulated), which speak by file.
"""
