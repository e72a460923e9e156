"""Networks: encoders for every observation space, torsos, recurrent cores, heads, and the user's own."""
