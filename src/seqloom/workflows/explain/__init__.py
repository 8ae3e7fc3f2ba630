"""Looking into a model: attention, gradients, patches."""
