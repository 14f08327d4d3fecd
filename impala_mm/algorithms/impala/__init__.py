"""IMPALA: an actor-critic that V-trace corrects for the policy's lag."""
