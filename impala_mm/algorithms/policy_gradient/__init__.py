"""PPO, A2C, VPG, AWR and V-MPO: policy gradients in rounds."""
