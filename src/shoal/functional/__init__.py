"""Laws: pure functions on tensors, each with its paper, its shapes and a test that states it."""
