"""A user's own command on an emulated GPU: what it needs, whether that fits, and which changes make it fit.

Nothing but `inside` imports torch: ranks are processes of their own, which speak by file.
"""
