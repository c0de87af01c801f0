"""The resource's contract: fields, names, conditions, CRD. Pure; the bottom layer of the package."""
