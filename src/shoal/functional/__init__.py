"""Laws: pure functions on tensors, each with its paper, its shapes and a test that states it.

What a law is about may come first; every other argument is given by name.
"""
