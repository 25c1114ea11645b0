"""Host routing of a Kubernetes node: right before it joins, kept right, and proven."""
