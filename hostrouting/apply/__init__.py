"""The story of an apply: read, decide, carry out, prove, commit or undo."""
