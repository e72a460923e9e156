"""The loops that nodes run: acting, learning, judging."""
