"""An embedded single-node Kubernetes for the demo and the tests; never a dependency of the product."""
