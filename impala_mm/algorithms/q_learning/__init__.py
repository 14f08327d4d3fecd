"""DQN, Rainbow's parts and R2D2: values of actions."""
