"""One vocabulary of networking values for both address families."""
