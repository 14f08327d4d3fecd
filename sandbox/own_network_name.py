"""Gives the networks of own_network.py their names, without loading TensorFlow."""

import nets

nets.register("TwinAgent", "own_network:twin")
nets.register("TwinLSTMAgent", "own_network:twin_lstm")
