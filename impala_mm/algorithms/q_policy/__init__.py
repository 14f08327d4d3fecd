"""SAC: a soft actor-critic that learns from replayed steps."""
