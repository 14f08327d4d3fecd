"""Parts that several algorithms share, which a user's algorithm may use."""
