"""Evidence that needs hardware which tests cannot ask for; run by `make evidence-gpu`."""
