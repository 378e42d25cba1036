"""HTTP statuses by what they mean to whoever has asked."""

PATIENCE = (408, 425, 429, 500, 502, 503, 504)
"""Of a server that may answer later."""
