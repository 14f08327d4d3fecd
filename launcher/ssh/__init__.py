"""SSH to other hosts, as the user's own `ssh` would go there; `connection` is where to begin."""
